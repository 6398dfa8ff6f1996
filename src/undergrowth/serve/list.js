"use strict";

// Sorts, filters, folds and updates the list of runs. Without this script the list can be read, and ticked runs compared.

const shortestPause = 2000; // milliseconds
const pausePerAnswer = 20; // times as long as the answer took, so that watching costs a run little of its time
const body = document.querySelector("#runs tbody");
const heads = [...document.querySelectorAll("#runs .sort")];
const filter = document.getElementById("filter");
const every = document.getElementById("every");
const compare = document.getElementById("compare");
// The newest run is first. Runs of the same second stay in the order in which the server sends them.
let sorted = { column: heads.length - 1, descending: true };
let rows = body.innerHTML;
const unfolded = new Set(); // sweeps whose runs are shown

const boxes = () => [...body.querySelectorAll("input[name=run]")];
const sweepRows = () => [...body.querySelectorAll("tr.sweep")];
const rowsOf = (sweep) => [...body.rows].filter((row) => row.dataset.sweep === sweep && !row.classList.contains("sweep"));
const boxesOf = (sweep) => rowsOf(sweep).filter((row) => !row.hidden).flatMap((row) => [...row.querySelectorAll("input")]);
const valueAt = (row, column) => row.cells[column + 1].dataset.value;

function compareRows(one, other) {
  const [left, right] = [one, other].map((row) => valueAt(row, sorted.column));
  if (!left || !right) return (left ? 0 : 1) - (right ? 0 : 1); // rows without a value are last, in both directions
  const numbers = !isNaN(left) && !isNaN(right);
  const order = numbers ? Number(left) - Number(right) : left.localeCompare(right);
  return sorted.descending ? -order : order;
}

function arrange() {
  const words = filter.value.toLowerCase().split(/\s+/).filter((word) => word);
  const all = [...body.rows].filter((row) => !row.classList.contains("empty") && !row.classList.contains("sweep"));
  for (const row of all.sort(compareRows)) {
    const text = `${row.textContent} ${row.dataset.sweep ?? ""}`.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    row.classList.toggle("folded", "sweep" in row.dataset && !words.length && !unfolded.has(row.dataset.sweep));
    body.append(row);
  }
  const placed = new Set();
  for (const row of all) { // the runs of a sweep follow its row, at the place of the first of them
    if (!("sweep" in row.dataset) || placed.has(row.dataset.sweep)) continue;
    placed.add(row.dataset.sweep);
    row.before(...sweepRows().filter((each) => each.dataset.sweep === row.dataset.sweep));
    row.after(...rowsOf(row.dataset.sweep).filter((each) => each !== row));
  }
  for (const row of sweepRows()) {
    row.hidden = rowsOf(row.dataset.sweep).every((each) => each.hidden);
    row.querySelector(".fold").setAttribute("aria-expanded", String(words.length > 0 || unfolded.has(row.dataset.sweep)));
  }
  heads.forEach((head, column) => {
    head.textContent = all[0]?.cells[column + 1].dataset.title ?? head.textContent; // the name of the metric can change
    const order = sorted.descending ? "descending" : "ascending";
    head.parentElement.setAttribute("aria-sort", column === sorted.column ? order : "none");
  });
  countTicks();
}

function countTicks() {
  const shown = boxes().filter((box) => !box.closest("tr").hidden);
  const ticked = boxes().filter((box) => box.checked).length;
  const all = boxes().length;
  document.getElementById("shown").textContent =
    `${ticked ? `${ticked} ticked, ` : ""}${shown.length === all ? all : `${shown.length} of ${all}`} ${all === 1 ? "run" : "runs"}`;
  compare.disabled = ticked < 2;
  compare.textContent = ticked < 2 ? "Compare (tick two or more)" : `Compare ${ticked} runs`;
  every.checked = shown.length > 0 && shown.every((box) => box.checked);
  for (const row of sweepRows()) {
    const inside = boxesOf(row.dataset.sweep);
    row.querySelector("input").checked = inside.length > 0 && inside.every((box) => box.checked);
  }
}

async function update() {
  const response = await fetch("/rows", { cache: "no-cache" });
  if (!response.ok) throw new Error(`the server answers ${response.status}`);
  const news = await response.text();
  if (news === rows) return;
  rows = news;
  const ticked = new Set(boxes().filter((box) => box.checked).map((box) => box.value));
  const focused = document.activeElement?.value; // a box in the list keeps the focus
  body.innerHTML = news;
  for (const box of boxes()) {
    box.checked = ticked.has(box.value);
    if (box.value === focused) box.focus();
  }
  arrange();
}

async function follow() {
  const began = performance.now();
  await update().catch((error) => {
    document.getElementById("shown").textContent = `This list is not updated any more (${error.message}).`;
    rows = "";
  });
  setTimeout(follow, Math.max(shortestPause, pausePerAnswer * (performance.now() - began)));
}

heads.forEach((head, column) => head.addEventListener("click", () => {
  const number = head.parentElement.classList.contains("number");
  const descending = column === sorted.column ? !sorted.descending : number;
  sorted = { column, descending };
  arrange();
}));
filter.addEventListener("input", arrange);
body.addEventListener("change", (event) => {
  const row = event.target.closest("tr.sweep");
  if (row) for (const box of boxesOf(row.dataset.sweep)) box.checked = event.target.checked;
  countTicks();
});
body.addEventListener("click", (event) => {
  if (!event.target.classList.contains("fold")) return;
  const { sweep } = event.target.closest("tr").dataset;
  unfolded.has(sweep) ? unfolded.delete(sweep) : unfolded.add(sweep);
  arrange();
});
every.addEventListener("change", () => {
  for (const box of boxes()) if (!box.closest("tr").hidden) box.checked = every.checked;
  countTicks();
});
// Enter in the filter must not send the form.
filter.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
// After the button `Back`, a browser ticks the boxes again.
window.addEventListener("pageshow", countTicks);
arrange();
setTimeout(follow, shortestPause);
