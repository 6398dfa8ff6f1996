"use strict";

// Keeps a page about runs that are not done up to date. It runs after page.js, whose functions it uses.
// It asks for news instead of being sent them: so the server holds nothing open, and ends at once.

const shortestPause = 1000; // milliseconds
const pausePerAnswer = 20; // times as long as the answer took, so that watching costs a run little of its time
let version = document.body.dataset.version;

function show(message) {
  document.getElementById("progress").replaceChildren(message);
}

// Puts the drawn figures, the key and the state of folded cards into the new markup.
function replaceSummary(markup) {
  const summary = document.getElementById("summary");
  const next = document.createElement("div");
  next.innerHTML = markup;
  for (const figure of next.querySelectorAll(".figure > div")) figure.replaceWith(document.getElementById(figure.id));
  next.querySelector(".legend")?.replaceWith(summary.querySelector(".legend"));
  const folded = summary.querySelectorAll("details");
  next.querySelectorAll("details").forEach((card, place) => { card.open = folded[place]?.open ?? false; });
  summary.replaceChildren(...next.childNodes);
}

function redraw(news) {
  const hidden = [...document.querySelectorAll(".legend .hidden")].map((button) => button.dataset.group);
  for (const [name, figure] of Object.entries(news)) {
    for (const trace of figure.data) if (hidden.includes(trace.legendgroup)) trace.visible = false;
    // The same revision keeps what the reader has zoomed into.
    Plotly.react(name, figure.data, { ...layoutOf(figure), uirevision: "live" }, options);
    figures[name] = figure;
  }
}

async function update() {
  const response = await fetch(document.body.dataset.live, { cache: "no-cache" });
  if (!response.ok) throw new Error(`the server answers ${response.status}`);
  const news = await response.json();
  document.getElementById("progress").innerHTML = news.progress;
  if (news.version === version) return;
  version = news.version;
  const drawn = document.querySelectorAll("#summary .figure").length;
  // The end of a run adds sections to the page, and its first round adds figures.
  const changed = news.statuses !== document.body.dataset.statuses || Object.keys(news.figures).length !== drawn;
  if (changed) return location.reload();
  replaceSummary(news.summary);
  redraw(news.figures);
}

async function follow() {
  const began = performance.now();
  await update().catch((error) => show(`This page is not updated any more (${error.message}).`));
  setTimeout(follow, Math.max(shortestPause, pausePerAnswer * (performance.now() - began)));
}

firstDrawing.then(() => setTimeout(follow, shortestPause));
