// The page of `forebay plan whatif --page` and the section of `forebay report --plan`; the numbers are in #plan-data.
const D = JSON.parse(document.getElementById("plan-data").textContent);
const $ = id => document.getElementById("plan-" + id), NS = "http://www.w3.org/2000/svg";
const CONTROLS = {
  workload: D.workloads.map(w => w === "io" ? "plain reads" : D.trained.find(t => t.workload === w).said), drive: D.drives, drives: D.counts, hosts: D.hosts,
  queues: D.queues.map(q => q ? `remote, ${q} DPU queue${q > 1 ? "s" : ""}` : "local"), path: D.paths, requests: D.requests,
  size: D.sizes,
};
const at = name => $(name) ? +$(name).value : 0;
const two = v => (v / 100).toFixed(2), count = (n, what) => n + " " + what + (n === 1 ? "" : "s");
function node(svg, name, attributes, text) {
  const n = document.createElementNS(NS, name);
  for (const k in attributes) n.setAttribute(k, attributes[k]);
  if (text !== undefined) n.textContent = text;
  svg.appendChild(n);
}
// The least of 1, 2, 2.5 and 5 times a power of ten that isn't below: the step of an axis.
function round(least) {
  const unit = 10 ** Math.floor(Math.log10(least));
  return unit * [1, 2, 2.5, 5, 10].find(n => n * unit >= least);
}
function chart(svg, names, cells, here, seen, least) {
  svg.replaceChildren();
  const top = Math.max(...cells.map(c => c[2]), ...seen.map(s => 100 * s[1])) * 1.05 || 1, n = Math.max(names.length - 1, 1);
  const x = i => 50 + 730 * i / n, y = v => 290 - 270 * v / top;
  for (let v = 0, by = round(top / 6); v <= top; v += by) {
    node(svg, "line", {x1: 50, x2: 780, y1: y(v), y2: y(v), class: "grid"});
    node(svg, "text", {x: 44, y: y(v) + 4, "text-anchor": "end"}, +(v / 100).toPrecision(3));
  }
  const step = Math.ceil(names.length / 10);
  names.forEach((name, i) => { if (i % step === 0) node(svg, "text", {x: x(i), y: 310, "text-anchor": "middle"}, name); });
  const up = cells.map((c, i) => x(i) + "," + y(c[2])), down = cells.map((c, i) => x(i) + "," + y(c[1])).reverse();
  node(svg, "polygon", {points: up.concat(down).join(" "), class: "band"});
  node(svg, "polyline", {points: cells.map((c, i) => x(i) + "," + y(c[0])).join(" "), class: "line"});
  if (least) node(svg, "line", {x1: 50, x2: 780, y1: y(100 * least), y2: y(100 * least), class: "least"});
  for (const s of seen) {
    if (s[2]) node(svg, "rect", {x: x(s[0]) - 4, y: y(100 * s[1]) - 4, width: 8, height: 8, class: "own"});
    else node(svg, "circle", {cx: x(s[0]), cy: y(100 * s[1]), r: 5, class: "seen"});
  }
  if (here !== null) node(svg, "circle", {cx: x(here), cy: y(cells[here][0]), r: 5, class: "now"});
}
const triples = (flat, width) => Array.from({length: flat.length / width}, (_, i) => flat.slice(i * width, (i + 1) * width));
const place = (drives, hosts, queues) => D.places.findIndex(p => p[0] === drives && p[1] === hosts && p[2] === queues);
function curve(drive, path, spot, requests) {
  return triples(D.rate[((drive * D.paths.length + path) * D.places.length + spot) * D.requests.length + requests], 4);
}
const trainedAt = (trained, drive, path, spot) => (drive * trained.paths + (trained.paths > 1 ? path : 0)) * D.places.length + spot;
function figure(trained, drive, path, spot, requests, size) {
  if (!trained) { const c = curve(drive, path, spot, requests)[size]; return [two(c[0]), two(c[1]), two(c[2]), D.limits[c[3]]]; }
  const g = trained.greatest[trainedAt(trained, drive, path, spot)];
  return [g[0], g[1], g[2], D.limits[g[3]]];
}
function table(trained, drive, requests, size, hosts) {
  const body = $("table");
  body.replaceChildren();
  const row = (cells, tag) => {
    const tr = document.createElement("tr");
    cells.forEach((text, i) => { const c = document.createElement(i ? tag : "th"); c.textContent = text; if (i) c.className = "n"; tr.appendChild(c); });
    body.appendChild(tr);
  };
  const columns = [];
  for (const queues of [0, D.queues[D.queues.length - 1]]) for (let path = 0; path < D.paths.length; path++) columns.push([queues, path]);
  row(["drives", ...columns.map(([q, p]) => (q ? "remote, " : "local, ") + D.paths[p])], "th");
  for (const drives of D.counts) {
    row([drives, ...columns.map(([q, p]) => {
      const spot = place(drives, hosts, q);
      if (spot < 0) return "–";
      const f = figure(trained, drive, p, spot, requests, size);
      return `${f[0]} (${f[1]} to ${f[2]})`;
    })], "td");
  }
}
function draw() {
  const drive = at("drive"), path = at("path"), requests = at("requests"), size = at("size");
  const drives = D.counts[at("drives")], queues = D.queues[at("queues")];
  let hosts = D.hosts[at("hosts")], spot = place(drives, hosts, queues), said = "";
  if (spot < 0) { said = `${count(drives, "local drive")} can't be spread evenly over ${hosts} hosts: one host. `; hosts = 1; spot = place(drives, 1, queues); }
  for (const name in CONTROLS) if ($(name + "-now")) $(name + "-now").textContent = CONTROLS[name][at(name)];
  const trained = D.trained.find(t => t.workload === D.workloads[at("workload")]);
  const cells = curve(drive, path, spot, requests), now = cells[size];
  const seen = D.seen.filter(s => s[0] === drive && s[1] === path && s[2] === queues && s[3] === requests && s[4] === drives && hosts === 1);
  chart($("rate"), D.sizes, cells, size, seen.map(s => [s[5], s[6], s[7]]), 0);
  const where = `${drives} × ${D.drives[drive]}${queues ? ", remote" : ""}, ${count(hosts, "host")}`;
  said += `${where}: ${two(now[0])} GiB/s of plain reads (${two(now[1])} to ${two(now[2])}); what limits it: ${D.limits[now[3]]}.`;
  if ($("training")) $("training").hidden = !trained;
  if (trained) {
    const cell = trainedAt(trained, drive, path, spot), g = trained.greatest[cell], au = triples(trained.au[cell], 3);
    let last = -1;
    trained.numbers.forEach((n, i) => { if (n <= g[0]) last = i; });
    chart($("au"), trained.numbers, au, last < 0 ? null : last, [], trained.least);
    $("au-title").textContent = `${trained.measure} of ${trained.said}, %, by ${trained.accelerator}s`;
    said = `${where}: at most ${count(g[0], trained.accelerator)} (${g[1]} to ${g[2]}) pass${g[0] === 1 ? "es" : ""} ${trained.said}; what limits it: ${D.limits[g[3]]}. ` + said;
  }
  if ($("table")) table(trained, drive, requests, size, hosts);
  $("answer").textContent = said;
}
for (const [i, name] of ["workload", "drive", "drives", "hosts", "queues", "path", "size", "requests"].entries()) {
  const control = $(name);
  if (!control) continue;
  if (control.tagName === "SELECT") CONTROLS[name].forEach((text, k) => control.add(new Option(text, k)));
  else control.max = CONTROLS[name].length - 1;
  control.value = D.first[i] || 0;
  control.closest("label").hidden = CONTROLS[name].length < 2;
  control.addEventListener("input", draw);
}
draw();
