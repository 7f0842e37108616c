// The page of `forebay plan whatif --page` and the section of `forebay report --plan`; the numbers are in #plan-data.
const D = JSON.parse(document.getElementById("plan-data").textContent);
const $ = id => document.getElementById("plan-" + id), NS = "http://www.w3.org/2000/svg";
function node(svg, name, attributes, text) {
  const n = document.createElementNS(NS, name);
  for (const k in attributes) n.setAttribute(k, attributes[k]);
  if (text !== undefined) n.textContent = text;
  svg.appendChild(n);
}
function chart(svg, names, cells, at, seen, least) {
  svg.replaceChildren();
  const top = Math.max(...cells.map(c => c[2]), ...seen.map(s => s[1])) * 1.05, n = Math.max(names.length - 1, 1);
  const x = i => 50 + 730 * i / n, y = v => 290 - 270 * v / top;
  for (let k = 0; k <= 4; k++) {
    const v = top * k / 4;
    node(svg, "line", {x1: 50, x2: 780, y1: y(v), y2: y(v), class: "grid"});
    node(svg, "text", {x: 44, y: y(v) + 4, "text-anchor": "end"}, v.toPrecision(3));
  }
  const step = Math.ceil(names.length / 12);
  names.forEach((name, i) => { if (i % step === 0) node(svg, "text", {x: x(i), y: 310, "text-anchor": "middle"}, name); });
  const up = cells.map((c, i) => x(i) + "," + y(c[2])), down = cells.map((c, i) => x(i) + "," + y(c[1])).reverse();
  node(svg, "polygon", {points: up.concat(down).join(" "), class: "band"});
  node(svg, "polyline", {points: cells.map((c, i) => x(i) + "," + y(c[0])).join(" "), class: "line"});
  if (least) node(svg, "line", {x1: 50, x2: 780, y1: y(least), y2: y(least), class: "least"});
  for (const s of seen) {
    if (s[3]) node(svg, "rect", {x: x(s[0]) - 4, y: y(s[1]) - 4, width: 8, height: 8, class: "own"});
    else node(svg, "circle", {cx: x(s[0]), cy: y(s[1]), r: 5, class: "seen"});
  }
  node(svg, "circle", {cx: x(at), cy: y(cells[at][0]), r: 5, class: "now"});
}
function draw() {
  const d = +$("drives").value, q = +$("queues").value, s = +$("size").value;
  $("drives-now").textContent = D.drives[d];
  $("queues-now").textContent = D.queues[q] || "local";
  $("size-now").textContent = D.sizes[s];
  const curve = D.rate[d][q], now = curve[s];
  const seen = D.seen.filter(p => p[2] === D.queues[q] && p[4] === D.drives[d]);
  chart($("rate"), D.sizes, curve, s, seen, 0);
  let said = `${now[0].toFixed(2)} GiB/s (${now[1].toFixed(2)} to ${now[2].toFixed(2)}); limited by ${now[3]}.`;
  if (D.au) {
    const a = +$("accelerators").value, au = D.au[d][a];
    $("accelerators-now").textContent = D.accelerators[a];
    chart($("au"), D.accelerators, D.au[d], a, [], D.least);
    said += ` AU of ${D.accelerators[a]} accelerators on local drives: ${au[0].toFixed(1)} % (${au[1].toFixed(1)} to ${au[2].toFixed(1)})` +
      `; the greatest number that passes is ${D.greatest[d]}.`;
  }
  $("answer").textContent = said;
}
for (const [id, values, first] of [["drives", D.drives, 0], ["queues", D.queues, 0], ["size", D.sizes, 8], ["accelerators", D.accelerators, 0]]) {
  if (!$(id)) continue;
  $(id).max = values.length - 1;
  $(id).value = first;
  $(id).addEventListener("input", draw);
}
draw();
