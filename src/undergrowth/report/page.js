"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
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
for (const [name, figure] of Object.entries(figures)) {
  Plotly.newPlot(name, figure.data, applyColours(figure.layout), options);
}
dark.addEventListener("change", () => {
  for (const [name, figure] of Object.entries(figures)) Plotly.relayout(name, colours(figure.layout));
});

for (const button of document.querySelectorAll("[data-run]")) {
  button.addEventListener("click", () => {
    const visible = !button.classList.toggle("hidden");
    for (const [name, figure] of Object.entries(figures)) {
      const traces = figure.data.flatMap((trace, place) => (trace.legendgroup === button.dataset.run ? [place] : []));
      if (traces.length) Plotly.restyle(name, { visible }, traces);
    }
  });
}
