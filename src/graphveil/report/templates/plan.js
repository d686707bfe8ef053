"use strict";
// Looks plans up in the grid that came with the page; it computes no epsilon and no noise.
const grid = JSON.parse(document.getElementById("grid").textContent);
const sliders = grid.sizes.map((_, number) => document.getElementById("axis-" + number));
const noise = document.getElementById("noise");
const at = (places) => grid.points[places.reduce((sum, place, n) => sum * grid.sizes[n] + place, 0)];
const chosen = () => sliders.map((slider) => Number(slider.value));

function along(places) {
  // The plans that differ in epsilon only, with their place on that slider.
  return grid.texts[0].map((_, place) => [place, at([place, ...places.slice(1)])]);
}

function show() {
  const places = chosen();
  const point = at(places);
  places.forEach((place, number) => {
    const text = grid.texts[number][place];
    document.getElementById("value-" + number).textContent = text;
    sliders[number].setAttribute("aria-valuetext", text);
  });
  const rows = point.refused ? [["refused", point.refused]] : point.rows;
  document.getElementById("answer").classList.toggle("refused", point.epsilon === null);
  const strong = document.createElement("strong");
  strong.textContent = point.refused ? "Refused" : point.epsilon === null ? "No guarantee" : point.epsilon;
  document.getElementById("headline").replaceChildren(point.epsilon === null ? "" : "ε = ", strong);
  document.getElementById("summary").textContent = point.refused ? "refused"
    : (point.epsilon === null ? "no guarantee" : "ε = " + point.epsilon) + " · noise multiplier "
      + point.noise.toPrecision(6) + " · " + grid.measure + " " + point.measure;
  document.getElementById("rows").replaceChildren(...rows.map(([name, value]) => {
    const row = document.createElement("div");
    row.append(document.createElement("dt"), document.createElement("dd"));
    row.firstChild.textContent = name;
    row.lastChild.textContent = value;
    return row;
  }));
  const dots = document.getElementById("trade-dots");
  dots.setAttribute("d", along(places).filter(([, point]) => point.y !== null)
    .map(([place, point]) => "M" + grid.x[place] + " " + point.y + dots.dataset.dot).join(""));
  const dot = document.getElementById("trade-dot");
  dot.toggleAttribute("hidden", point.y === null);
  if (point.y !== null) {
    dot.setAttribute("transform", "translate(" + grid.x[places[0]] + " " + point.y + ")");
  }
  if (noise) invert(places);
}

function invert(places) {
  // More noise than a plan has costs no more than that plan, so the cheapest such plan is a bound.
  const given = Number(noise.value);
  const bound = along(places).map(([, point]) => point)
    .find((point) => point.epsilon !== null && point.noise <= given);
  document.getElementById("inverse").textContent = bound
    ? "epsilon is at most " + bound.epsilon + ", for all else as chosen: the plan for that needs "
      + bound.noise.toPrecision(6) + "."
    : "epsilon is above all that this page has, for all else as chosen.";
}

for (const slider of sliders) slider.addEventListener("input", show);
if (noise) noise.addEventListener("input", () => invert(chosen()));
document.getElementById("reset").addEventListener("click", () => {
  grid.asked.forEach((place, number) => { sliders[number].value = place; });
  show();
});
document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("controls").hidden = false;
show();
