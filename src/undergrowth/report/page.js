"use strict";

// Plotly's script and the figures are in the page as gzip in base 85, in which "." stands for "<".
const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;.=>?@^_`{|}~";

function decode(text) {
  const values = new Uint8Array(128);
  for (let place = 0; place < digits.length; place++) values[digits.charCodeAt(place)] = place;
  const view = new DataView(new ArrayBuffer(4 * Math.ceil(text.length / 5)));
  const padded = text.padEnd(view.byteLength / 4 * 5, "~");
  for (let group = 0; group < padded.length / 5; group++) {
    let number = 0;
    for (let place = 5 * group; place < 5 * group + 5; place++) number = 85 * number + values[padded.charCodeAt(place)];
    view.setUint32(4 * group, number);
  }
  return new Uint8Array(view.buffer, 0, Math.floor(text.length * 4 / 5));
}

async function unpack(element) {
  const text = document.getElementById(element).textContent;
  const stream = new Blob([decode(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

let figures = {};
const dark = window.matchMedia("(prefers-color-scheme: dark)");

// Colours of the theme by their paths in the layout, for a new plot and for a change of theme.
function colours(layout) {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const found = {
    "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
    "font.color": read("--text"), "font.family": getComputedStyle(document.body).fontFamily,
    "hoverlabel.bgcolor": read("--card"), "hoverlabel.bordercolor": read("--line"), "hoverlabel.font.color": read("--text"),
    "modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": read("--quiet"), "modebar.activecolor": read("--accent"),
  };
  for (const axis of Object.keys(layout).filter((name) => /^[xy]axis/.test(name))) {
    found[axis + ".gridcolor"] = read("--grid");
    found[axis + ".linecolor"] = read("--line");
  }
  return found;
}

function applyColours(layout) {
  for (const [path, value] of Object.entries(colours(layout))) {
    const steps = path.split(".");
    const last = steps.pop();
    let node = layout;
    for (const step of steps) node = node[step] = node[step] || {};
    node[last] = value;
  }
  return layout;
}

// An explicit list, because the default buttons of plotly.js include one that uploads the data.
const buttons = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]];
const options = { responsive: true, displaylogo: false, modeBarButtons: buttons };
// On a touch screen, a figure must not take the gesture that scrolls the page, and its buttons would cover it.
const touch = window.matchMedia("(hover: none)").matches;
if (touch) options.displayModeBar = false;

function layoutOf(figure) {
  // The title is in the page above the figure, where it wraps on a narrow screen.
  const { title, ...layout } = applyColours(figure.layout);
  if (touch) layout.dragmode = false;
  return layout;
}

async function draw() {
  figures = JSON.parse(await unpack("figures"));
  if (!window.Plotly) {
    const script = document.createElement("script");
    script.textContent = await unpack("plotly");
    document.head.append(script);
  }
  for (const [name, figure] of Object.entries(figures)) Plotly.newPlot(name, figure.data, layoutOf(figure), options);
  dark.addEventListener("change", () => {
    for (const [name, figure] of Object.entries(figures)) Plotly.relayout(name, colours(figure.layout));
  });
}

const firstDrawing = draw().catch((error) => {
  const message = document.createElement("p");
  message.textContent = `The figures cannot be drawn (${error}). They need a browser of 2023 or later.`;
  document.querySelector("main").prepend(message);
});

for (const button of document.querySelectorAll("[data-group]")) {
  button.addEventListener("click", () => {
    const visible = !button.classList.toggle("hidden");
    for (const [name, figure] of Object.entries(figures)) {
      const traces = figure.data.flatMap((trace, place) => (trace.legendgroup === button.dataset.group ? [place] : []));
      if (traces.length) Plotly.restyle(name, { visible }, traces);
    }
  });
}
