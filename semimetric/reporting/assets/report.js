"use strict";
// The script of a report: tiles of the picture sheet, the map with its legend, and the theme.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const hover = document.getElementById("hover");

  function showTile(element, place, step) {
    const { url, across } = data.sheet;
    if (!url) return;
    element.style.backgroundImage = `url("${url}")`;
    element.style.backgroundSize = `${across * step}px auto`;
    element.style.backgroundPosition = `${-(place % across) * step}px ${-Math.floor(place / across) * step}px`;
  }
  for (const tile of document.querySelectorAll("[data-tile]")) showTile(tile, Number(tile.dataset.tile), 72);

  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    if (data.map) draw();
  });
  if (!data.map) return;

  const map = data.map;
  const canvas = document.getElementById("map-canvas");
  const chooser = document.getElementById("map-colour");
  const legend = document.getElementById("map-legend");
  const count = document.getElementById("map-count");
  const pen = canvas.getContext("2d");
  const hidden = new Set();
  let near = -1;

  // What the points can be coloured by: the name of each group, and the group of each point.
  function grouping() {
    if (chooser.value === "confidence") {
      const bounds = ["below 20 %", "20 to 40 %", "40 to 60 %", "60 to 80 %", "80 % and more"];
      return { names: bounds, of: map.confidence.map((share) => Math.min(4, Math.floor(share * 5))), ramp: true };
    }
    if (chooser.value === "labelled") return { names: ["labelled", "unlabelled"], of: map.labelled.map((known) => (known ? 0 : 1)) };
    const numbers = chooser.value === "class" ? map.known : map.predicted;
    const present = [...new Set(numbers)].sort((a, b) => (a < 0) - (b < 0) || a - b);
    return { names: present.map((n) => (n < 0 ? "unknown" : map.classes[n])), of: numbers.map((n) => present.indexOf(n)) };
  }
  const RAMP = { light: ["#d9ecf7", "#9fcde8", "#56b4e9", "#2786c0", "#0b4f7d"], dark: ["#0f3a57", "#1d6594", "#3b97cf", "#86c7ef", "#dff2fd"] };
  function colourOf(group, groups) {
    if (groups.ramp) return RAMP[dark() ? "dark" : "light"][group];
    if (groups.names[group] === "unknown") return dark() ? "#6d7480" : "#a8adb6";
    const colours = data.colours[dark() ? "dark" : "light"];
    return colours[group % colours.length];
  }

  function place(index) {
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const scale = Math.min(width, height) / 2 - 8;
    return [width / 2 + map.x[index] * scale * Math.min(1.3, width / height), height / 2 - map.y[index] * scale];
  }

  function mark(x, y, size, shape) {
    pen.beginPath();
    if (shape === 0) pen.arc(x, y, size, 0, 2 * Math.PI);
    else if (shape === 1) { pen.moveTo(x, y - 1.3 * size); pen.lineTo(x + 1.2 * size, y + size); pen.lineTo(x - 1.2 * size, y + size); }
    else if (shape === 2) pen.rect(x - size, y - size, 2 * size, 2 * size);
    else { pen.moveTo(x, y - 1.4 * size); pen.lineTo(x + 1.4 * size, y); pen.lineTo(x, y + 1.4 * size); pen.lineTo(x - 1.4 * size, y); }
    pen.fill();
  }

  let groups = grouping();
  function draw() {
    const ratio = devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    pen.globalAlpha = 0.8;
    const size = map.x.length > 1000 ? 2.4 : 3.4;
    map.x.forEach((_, index) => {
      const group = groups.of[index];
      if (hidden.has(group)) return;
      pen.fillStyle = colourOf(group, groups);
      mark(...place(index), map.labelled[index] ? size * 1.6 : size, Math.floor(group / 10) % 4);
    });
    if (near >= 0) {
      pen.globalAlpha = 1;
      pen.strokeStyle = getComputedStyle(root).getPropertyValue("--ink");
      pen.lineWidth = 2;
      pen.beginPath();
      pen.arc(...place(near), size + 5, 0, 2 * Math.PI);
      pen.stroke();
    }
    const shown = groups.of.filter((group) => !hidden.has(group)).length;
    count.textContent = `${shown.toLocaleString("en")} of ${map.x.length.toLocaleString("en")} points shown`;
    for (const swatch of legend.querySelectorAll("i")) swatch.style.background = colourOf(Number(swatch.dataset.group), groups);
  }

  function buildLegend() {
    groups = grouping();
    hidden.clear();
    legend.replaceChildren(...groups.names.map((name, group) => {
      const button = document.createElement("button");
      const [swatch, label, number] = ["i", "span", "small"].map((kind) => document.createElement(kind));
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      swatch.dataset.group = String(group);
      label.textContent = name.replaceAll("_", "_\u200b");
      number.textContent = groups.of.filter((of) => of === group).length.toLocaleString("en");
      button.append(swatch, label, number);
      button.addEventListener("click", () => {
        if (!hidden.delete(group)) hidden.add(group);
        button.setAttribute("aria-pressed", String(!hidden.has(group)));
        draw();
      });
      return button;
    }));
    draw();
  }

  function nearest(x, y) {
    let [best, distance] = [-1, 18];
    map.x.forEach((_, index) => {
      if (hidden.has(groups.of[index])) return;
      const [px, py] = place(index);
      const apart = Math.hypot(px - x, py - y);
      if (apart < distance) [best, distance] = [index, apart];
    });
    return best;
  }

  function line(words) {
    const element = document.createElement("div");
    element.textContent = words;
    return element;
  }
  function describe(index) {
    const parts = [line(map.names[index])];
    if (data.sheet.url) {
      const tile = document.createElement("span");
      tile.className = "tile";
      showTile(tile, map.tiles[index], 144);
      parts.unshift(tile);
    }
    for (const [column, value] of map.values[index] ?? []) parts.push(line(`${column}: ${value}`));
    if (map.known[index] >= 0) parts.push(line(`${map.labelled[index] ? "label" : "class"}: ${map.classes[map.known[index]]}`));
    if (map.classes.length) parts.push(line(`predicted: ${map.classes[map.predicted[index]]}, confidence ${Math.round(100 * map.confidence[index])} %`));
    hover.dataset.row = String(map.rows[index]);
    hover.replaceChildren(...parts);
  }
  function showAt(index, x, y) {
    near = index;
    hover.hidden = index < 0;
    if (index >= 0) {
      describe(index);
      hover.style.left = `${Math.min(x + 16, innerWidth - hover.offsetWidth - 8)}px`;
      hover.style.top = `${Math.max(8, Math.min(y + 16, innerHeight - hover.offsetHeight - 8))}px`;
    }
    draw();
  }
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const found = nearest(event.clientX - box.left, event.clientY - box.top);
    if (found >= 0 || near >= 0) showAt(found, event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => showAt(-1, 0, 0));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") showAt(-1, 0, 0);
    if (!step) return;
    event.preventDefault();
    let index = near;
    for (let tried = 0; tried < map.x.length; tried++) {
      index = (index + step + map.x.length) % map.x.length;
      if (!hidden.has(groups.of[index])) break;
    }
    const box = canvas.getBoundingClientRect();
    const [x, y] = place(index);
    showAt(index, box.left + x, box.top + y);
  });
  chooser.addEventListener("change", buildLegend);
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  buildLegend();
})();
