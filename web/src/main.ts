// The page: one list of examples beside the map, class keys below, and what other browsers do as it happens.

import { columns, get, post, Refused, saveSelection, upload } from "./api";
import type { Columns, Example, Facts, Outcome, ShortFacts } from "./api";
import { classColour } from "./colours";
import { clusters, contourLines, density } from "./density";
import { encoded, groups, PointMap } from "./map";
import type { ColourBy, Group } from "./map";

const SHOWN = 120; // tiles of a long list at first

function element<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no ${id}`);
  return found as T;
}

function make<K extends keyof HTMLElementTagNameMap>(kind: K, text = "", name = ""): HTMLElementTagNameMap[K] {
  const made = document.createElement(kind);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

const visible = (text: string): string => text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

// A label on its way to the server.
interface Pending {
  rows: number[];
  label: string | null;
  who: string;
}

type Answer = ShortFacts & { done: boolean; rows: number[]; labels: (string | null)[] };

type ListName = "queue" | "selection" | "search" | "errors" | "duplicates" | "outliers";

class Page {
  private facts!: Facts;
  private data!: Columns;
  private codes: Uint16Array = new Uint16Array(0);
  private map: PointMap | null = null;
  private list: ListName = "queue";
  private shown: Example[] = [];
  private current = 0;
  private selection: number[] = [];
  private searched: Example[] = [];
  private readonly hidden = new Set<string>();
  private more = SHOWN;
  private hovered: number | null = null;
  private was = new Map<number, string>(); // the class before the run learned again, by row
  private saving: Promise<unknown> = Promise.resolve();
  private pending: Pending[] = [];
  private examplesKey = ""; // of the examples that this page was opened on
  private held = false; // the labels that are pending wait for a choice

  async start(): Promise<void> {
    this.facts = await get<Facts>("api/run");
    this.examplesKey = this.facts.key;
    this.data = await columns(this.facts.examples);
    document.title = `${this.facts.name} · semimetric`;
    element("name").textContent = visible(this.facts.name);
    element("made").textContent = `${this.facts.map}. ${this.facts.missing}`;
    this.openMap();
    this.wire();
    this.showFacts();
    this.showWho(localStorage.getItem("who") ?? "");
    element<HTMLButtonElement>("learn").disabled = this.facts.learning;
    if (this.facts.outcome) this.showOutcome(this.facts.outcome);
    this.listen();
    await this.draw();
    document.body.dataset.painted = String(Math.round(performance.now()));
    await this.open("queue");
    document.body.dataset.ready = "yes";
  }

  private openMap(): void {
    try {
      this.map = new PointMap(element<HTMLCanvasElement>("map"), this.facts.examples, {
        selected: (rows) => this.select(rows),
        over: (row) => void this.hover(row),
      });
    } catch (error) {
      this.say(`This browser draws no map: ${(error as Error).message}`, true);
    }
  }

  private get colourBy(): ColourBy {
    return element<HTMLSelectElement>("colour").value as ColourBy;
  }

  private async draw(): Promise<void> {
    const { codes, colours } = encoded(this.data, this.colourBy, this.facts.classes);
    this.codes = codes;
    await this.map?.draw(this.data, codes, colours);
    this.showLegend();
    this.showMarks();
  }

  // What people see of the state.

  private showFacts(): void {
    const { labelled, examples, changes } = this.facts;
    element("count").textContent = `${labelled.toLocaleString("en")} of ${examples.toLocaleString("en")} labelled`;
    element<HTMLButtonElement>("undo").disabled = changes === 0;
    element("classes").replaceChildren(
      ...this.facts.classes.map(({ name, key, colour }) => {
        const button = make("button");
        button.type = "button";
        if (key) button.append(make("kbd", key));
        const swatch = make("i");
        swatch.style.background = classColour(colour);
        button.append(swatch, make("span", visible(name)));
        button.addEventListener("click", () => void this.label(name));
        return button;
      }),
    );
  }

  private showLegend(): void {
    const listed = groups(this.colourBy, this.facts.classes);
    const [inside, all] = [new Uint32Array(65536), new Uint32Array(65536)];
    for (const code of this.codes) all[code]!++;
    for (const row of this.selection) inside[this.codes[row]!]!++;
    const counts = ({ code }: Group): string => (this.selection.length ? `${inside[code]} / ${all[code]}` : all[code]!.toLocaleString("en"));
    element("legend").replaceChildren(
      ...listed.map((group) => {
        const button = make("button");
        button.type = "button";
        button.setAttribute("aria-pressed", String(!this.hidden.has(group.name)));
        const swatch = make("i");
        swatch.style.background = group.colour;
        button.append(swatch, make("span", visible(group.name)), make("small", counts(group)));
        button.addEventListener("click", () => this.toggle(group.name));
        return button;
      }),
    );
  }

  private visibleRows(): number[] {
    const kept = new Set(groups(this.colourBy, this.facts.classes).filter((group) => !this.hidden.has(group.name)).map((group) => group.code));
    const rows: number[] = [];
    this.codes.forEach((code, row) => kept.has(code) && rows.push(row));
    return rows;
  }

  private toggle(name: string): void {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.map?.filter(this.hidden.size ? this.visibleRows() : null);
    this.showLegend();
    this.showMarks();
  }

  private on(id: string): boolean {
    return element<HTMLInputElement>(id).checked;
  }

  // Contour lines of the points that are shown, names of their clusters, and small pictures.
  private showMarks(): void {
    if (!this.map) return;
    const rows = this.visibleRows();
    const { x, y, label, predicted } = this.data;
    const grid = this.on("naming") || this.on("dense") ? density(x, y, rows) : null;
    const number = (row: number): number => (this.colourBy === "label" || label[row]! >= 0 ? label[row]! : predicted[row]!);
    const named = grid && this.on("naming") ? clusters(grid, x, y, rows, number) : [];
    const names = named.map((cluster) => ({ x: cluster.x, y: cluster.y, text: visible(this.facts.classes.find(({ colour }) => colour === cluster.name)?.name ?? "") }));
    const pictures = this.on("thumbs") && this.facts.pictures ? this.spread(rows).map((row) => ({ x: x[row]!, y: y[row]!, image: this.small(row) })) : [];
    this.map.mark({ contours: grid && this.on("dense") ? contourLines(grid) : [], names, pictures });
    element("clusters").textContent = names.length ? `Clusters: ${names.map(({ text }) => text).join(", ")}.` : "";
    element("map").dataset.pictures = String(pictures.length);
  }

  private small(row: number): HTMLImageElement {
    const tile = make("img");
    tile.src = `api/small/${row}`;
    return tile;
  }

  // The example nearest to the middle of each part of the map, so that small pictures hardly cover each other.
  private spread(rows: number[]): number[] {
    const parts = new Map<number, [number, number]>();
    for (const row of rows) {
      const [right, up] = [(this.data.x[row]! + 1) * 6, (this.data.y[row]! + 1) * 6];
      const part = Math.floor(right) * 100 + Math.floor(up);
      const apart = Math.hypot(right - Math.floor(right) - 0.5, up - Math.floor(up) - 0.5);
      if (apart < (parts.get(part)?.[1] ?? 1)) parts.set(part, [row, apart]);
    }
    return [...parts.values()].map(([row]) => row);
  }

  private async hover(row: number | null): Promise<void> {
    const box = element("hover");
    this.hovered = row;
    if (row === null) {
      box.hidden = true;
      return;
    }
    const [example] = await post<Example[]>("api/examples", { rows: [row] });
    if (!example || this.hovered !== row) return; // the mouse may have moved on
    box.replaceChildren(...this.picture(example), make("b", visible(example.name)), make("span", this.about(example)));
    box.dataset.row = String(row);
    const place = this.map?.place(this.data.x[row]!, this.data.y[row]!) ?? [0, 0];
    const frame = element("map").getBoundingClientRect();
    box.style.left = `${Math.min(frame.left + place[0] + 14, innerWidth - 200)}px`;
    box.style.top = `${Math.min(frame.top + place[1] + 14, innerHeight - 200)}px`;
    box.hidden = false;
  }

  private picture(example: Example, alt = ""): HTMLElement[] {
    if (this.facts.pictures) {
      const image = make("img");
      image.src = `api/small/${example.row}`;
      image.alt = alt;
      image.loading = "lazy";
      return [image];
    }
    const values = make("dl");
    for (const [name, value] of example.values) values.append(make("dt", visible(name)), make("dd", value));
    return [values];
  }

  private about(example: Example): string {
    if (example.label !== null) return visible(example.label);
    return example.predicted === null ? "" : `${visible(example.predicted)}? ${Math.round(100 * example.confidence)}\u00a0%`;
  }

  // Lists.

  private async open(name: ListName): Promise<void> {
    this.list = name;
    for (const tab of document.querySelectorAll<HTMLElement>("[data-list]")) {
      tab.setAttribute("aria-selected", String(tab.dataset.list === name));
      tab.tabIndex = tab.dataset.list === name ? 0 : -1;
    }
    this.current = 0;
    this.more = SHOWN;
    try {
      if (name === "selection") this.shown = this.selection.length ? await post<Example[]>("api/examples", { rows: this.selection.slice(0, 1000) }) : [];
      else if (name === "search") this.shown = this.searched;
      else this.shown = await get<Example[]>(`api/list/${name}`);
    } catch (error) {
      this.shown = [];
      this.say((error as Error).message, true);
    }
    this.showList();
  }

  private hint(): string {
    const all = this.selection.length;
    const texts: Record<ListName, string> = {
      queue: "What to label next, the most helpful first. Press the key of a class.",
      selection: all ? `Keys label all ${all.toLocaleString("en")} selected.` : "Draw around points on the map, or press a class in the legend and then Select shown.",
      search: "Nearest first. Press S on any example, or choose a picture.",
      errors: "Labels that the other labels contradict, the surest first.",
      duplicates: "Pairs that are nearly the same.",
      outliers: "Far from all others.",
    };
    return texts[this.list];
  }

  private showList(): void {
    element("hint").textContent = this.shown.length || this.list === "selection" || this.list === "search" ? this.hint() : "Nothing is listed here.";
    element("selected").textContent = this.selection.length ? String(this.selection.length) : "";
    const tiles = this.shown.slice(0, this.more).map((example, place) => this.tile(example, place));
    const rest = this.shown.length - tiles.length;
    if (rest > 0) {
      const button = make("button", `Show ${Math.min(rest, SHOWN)} more`);
      button.type = "button";
      button.addEventListener("click", () => {
        this.more += SHOWN;
        this.showList();
      });
      element("more").replaceChildren(button);
    } else element("more").replaceChildren();
    element("grid").replaceChildren(...tiles);
    this.point(false);
  }

  private tile(example: Example, place: number): HTMLElement {
    const tile = make("button", "", "tile");
    tile.type = "button";
    tile.dataset.row = String(example.row);
    tile.append(...this.picture(example, visible(example.name)));
    const words = make("span", this.about(example), example.label === null ? "guess" : "known");
    tile.append(words);
    const why = this.list === "selection" && this.was.has(example.row) ? `was ${this.was.get(example.row)}` : example.why;
    if (why !== undefined) tile.append(make("small", visible(why)));
    else if (example.distance !== undefined) tile.append(make("small", `distance ${example.distance.toPrecision(3)}`));
    tile.title = visible(example.name);
    tile.addEventListener("focus", () => {
      this.current = place;
      this.point(false);
    });
    tile.addEventListener("dblclick", () => void this.similar());
    return tile;
  }

  private point(focus: boolean): void {
    const tiles = [...element("grid").children] as HTMLElement[];
    tiles.forEach((tile, place) => {
      tile.tabIndex = place === this.current ? 0 : -1;
      tile.setAttribute("aria-current", String(place === this.current));
    });
    const now = tiles[this.current];
    if (focus) now?.focus();
    const row = this.shown[this.current]?.row;
    if (this.list !== "selection") this.map?.select(row === undefined ? [] : [row]);
  }

  private select(rows: number[]): void {
    if (rows.length === 1 && this.list !== "selection") {
      void this.show(rows);
      return;
    }
    this.was.clear();
    this.gather(rows);
  }

  private gather(rows: number[]): void {
    this.selection = rows;
    this.showLegend();
    void this.open("selection");
  }

  private async show(rows: number[]): Promise<void> {
    this.searched = await get<Example[]>(`api/similar/${rows[0]}`);
    await this.open("search");
  }

  private async similar(): Promise<void> {
    const example = this.shown[this.current];
    if (example) await this.show([example.row]);
  }

  // Labels.

  private async label(name: string | null): Promise<void> {
    const whole = this.list === "selection" && this.selection.length > 0;
    const example = this.shown[this.current];
    const rows = whole ? this.selection : example ? [example.row] : [];
    if (!rows.length) {
      this.say("Choose an example first.", true);
      return;
    }
    if (!whole) this.step(1, true); // the next example does not wait for the disk
    await this.save(rows, name);
  }

  private save(rows: number[], label: string | null): Promise<unknown> {
    this.pending.push({ rows, label, who: this.who });
    if (this.held) this.showHeld();
    return this.send();
  }

  // Labels go to the server in the order of the keys. What it cannot save is kept until it can, or until it is discarded.
  private send(): Promise<unknown> {
    this.saving = this.saving.then(async () => {
      for (let next = this.pending[0]; next && !this.held; next = this.pending[0]) {
        try {
          const saved = await post<Answer>("api/labels", { ...next, key: this.examplesKey });
          this.pending.shift();
          this.take(saved.rows, saved.labels, saved);
          const [count, label] = [saved.rows.length, saved.labels[0] ?? "none"];
          this.say(`${count === 1 ? "1 label" : `${count} labels`} saved: ${visible(label)}`);
        } catch (error) {
          if (error instanceof Refused && error.status === 400) {
            this.pending.shift();
            this.goTo(next.rows);
            this.say(`Not saved: ${error.message}`, true);
          } else this.hold(error as Error);
        }
      }
    });
    return this.saving;
  }

  // Keep what is pending, say why, and ask what to do.
  private hold(error: Error): void {
    this.held = true;
    const choices: [string, () => unknown][] = [["Try again", () => undefined]];
    if (error instanceof Refused && error.status === 409) {
      if (error.replaced) choices.push(["Use the file that is there now", () => post("api/book", { do: "use" })]);
      else choices.push(["Write the file again", () => post("api/book", { do: "write" })]);
    }
    choices.push(["Discard", () => ((this.pending = []), this.say("The labels that were not saved are discarded."))]);
    const buttons = choices.map(([text, act]) => {
      const button = make("button", text);
      button.type = "button";
      button.addEventListener("click", () => void this.release(act));
      return button;
    });
    const away = "The server does not answer. Start it again with the same command.";
    const why = !(error instanceof Refused) ? away : error.status === 404 ? "This address no longer opens the page." : error.message;
    element("held").replaceChildren(make("b", "Not saved. "), make("span", visible(why)), make("span", "", "count"), ...buttons);
    element("held").hidden = false;
    this.showHeld();
  }

  private showHeld(): void {
    const count = this.pending.length;
    element("held").querySelector(".count")!.textContent = `${count === 1 ? "1 label is" : `${count} labels are`} kept in this window.`;
    this.say(`Not saved yet: ${count === 1 ? "1 label" : `${count} labels`}`, true);
  }

  private async release(act: () => unknown): Promise<void> {
    try {
      await act();
    } catch (error) {
      this.hold(error as Error);
      return;
    }
    element("held").hidden = true;
    this.held = false;
    await this.send();
    if (!this.held) await this.refresh().catch(() => undefined); // a server that is away is said by the next label
  }

  private undo(): Promise<unknown> {
    const who = this.who;
    this.saving = this.saving.then(async () => {
      if (this.held) return;
      try {
        const back = await post<Answer>("api/undo", { who });
        this.take(back.rows, back.labels, back);
        const count = back.rows.length === 1 ? ": 1 label" : back.rows.length ? `: ${back.rows.length} labels` : ", and no label changed by it";
        this.goTo(back.rows);
        this.say(back.done ? `Taken back${count}` : "There is nothing of yours to take back.");
      } catch (error) {
        this.say(`Not taken back: ${(error as Error).message}`, true);
      }
    });
    return this.saving;
  }

  private take(rows: number[], labels: (string | null)[], facts: ShortFacts): void {
    const kept = this.facts.classes.every(({ name, colour }) => facts.classes.some((other) => other.name === name && other.colour === colour));
    Object.assign(this.facts, facts);
    const numbers = new Map(this.facts.classes.map(({ name, colour }) => [name, colour]));
    const given = new Map(rows.map((row, place) => [row, labels[place] ?? null]));
    for (const [row, label] of given) this.data.label[row] = label === null ? -1 : (numbers.get(label) ?? -1);
    for (const example of new Set([...this.shown, ...this.searched])) if (given.has(example.row)) example.label = given.get(example.row)!;
    for (const tile of element("grid").children) {
      const place = this.shown.findIndex((example) => String(example.row) === (tile as HTMLElement).dataset.row);
      const words = tile.querySelector("span");
      const example = this.shown[place];
      if (!words || !example) continue;
      words.textContent = this.about(example);
      words.className = example.label === null ? "guess" : "known";
    }
    this.showFacts();
    if (!kept) void this.refresh(); // a class has another name, or is gone
    else if (this.colourBy === "label" || this.colourBy === "labelled") void this.draw();
    else this.showLegend();
  }

  // Make the only one of some rows the current example, if it is listed.
  private goTo(rows: number[]): void {
    const place = rows.length === 1 && this.list !== "selection" ? this.shown.findIndex((example) => example.row === rows[0]) : -1;
    if (place >= 0) this.step(place - this.current, true);
  }

  private step(by: number, focus: boolean): void {
    this.current = Math.max(0, Math.min(this.shown.length - 1, this.current + by));
    if (this.current >= this.more) {
      this.more += SHOWN;
      this.showList();
    }
    this.point(focus);
  }

  // Learning again.

  private async learn(): Promise<void> {
    try {
      await post("api/learn", { judge: element<HTMLInputElement>("judge").checked });
      element<HTMLButtonElement>("learn").disabled = true;
      this.say("Learning again. The page goes on with the old model until the new one is done.");
    } catch (error) {
      this.say((error as Error).message, true);
    }
  }

  private listen(): void {
    const events = new EventSource("api/events");
    let lost = false;
    events.onerror = () => (lost = true);
    events.onopen = () => {
      if (lost) void this.refresh();
      lost = false;
    };
    const on = <T>(kind: string, act: (value: T) => void): void => events.addEventListener(kind, (event) => act(JSON.parse((event as MessageEvent<string>).data) as T));
    on<{ rows: number[]; labels: (string | null)[]; facts: ShortFacts }>("labels", ({ rows, labels, facts }) => {
      if (facts.last >= this.facts.last) this.take(rows, labels, facts);
    });
    on<{ judging: number; of: number }>("judging", ({ judging, of }) => this.say(`Judging both models on held-out labels: part ${judging} of ${of}`));
    on<Record<string, number>>("epoch", (line) => {
      const loss = Object.entries(line).find(([name]) => name.endsWith("loss"));
      this.say(`Epoch ${line.epoch}${loss ? `, loss ${loss[1].toPrecision(3)}` : ""}${line.confidence === undefined ? "" : `, confidence ${Math.round(100 * line.confidence)}\u00a0%`}`);
    });
    on<{ why: string }>("failed", ({ why }) => {
      element<HTMLButtonElement>("learn").disabled = false;
      this.say(`It did not learn: ${visible(why)}`, true);
    });
    on<Outcome>("learned", (outcome) => void this.learned(outcome));
  }

  // Take all from the server anew: after it learned, or when it was away.
  private async refresh(): Promise<void> {
    this.facts = await get<Facts>("api/run");
    this.data = await columns(this.facts.examples);
    element<HTMLButtonElement>("learn").disabled = this.facts.learning;
    element("made").textContent = `${this.facts.map}. ${this.facts.missing}`;
    this.showFacts();
    await this.draw();
  }

  private async learned(outcome: Outcome): Promise<void> {
    await this.refresh();
    element<HTMLButtonElement>("learn").disabled = false;
    this.showOutcome(outcome);
    this.say("Learned again.");
    await this.open("queue");
  }

  private showOutcome(outcome: Outcome): void {
    const percent = (share: number | null | undefined): string => (share === null || share === undefined ? "" : `${(100 * share).toFixed(1)}\u00a0%`);
    const { judged, before, after } = outcome;
    const rows = Object.keys(after ?? {}).map((name) => [`test ${name}`, percent(before?.[name]), percent(after?.[name])]);
    if (judged.labels) rows.unshift([`right on ${judged.labels} new labels`, percent(judged.before), percent(judged.after)]);
    const body = make("tbody");
    for (const cells of rows) {
      const line = make("tr");
      line.append(...cells.map((cell) => make("td", cell)));
      body.append(line);
    }
    const head = make("tr");
    head.append(...["", "before", "after"].map((cell) => make("th", cell)));
    const table = make("table");
    if (rows.length) table.append(head, body);
    const button = make("button", `${outcome.changed} examples changed their predicted class: look`);
    button.type = "button";
    button.addEventListener("click", () => {
      this.was = new Map(outcome.rows.map((row, place) => [row, outcome.from[place] || "none"]));
      this.map?.select(outcome.rows);
      this.gather(outcome.rows);
    });
    const how = judged.labels ? "Each of these labels was held out from the model that it judges." : judged.why;
    const left = judged.unused.length ? `Not used, because the examples changed since they were labelled: ${judged.unused.join(", ")}.` : "";
    const unused = left ? [make("p", visible(left), "wrong")] : [];
    element("outcome").replaceChildren(table, button, make("p", visible(how)), ...unused, make("p", `The new run is ${visible(outcome.run)}; the old one is as it was.`));
    element("outcome").hidden = false;
  }

  // Input.

  private say(text: string, wrong = false): void {
    const line = element("status");
    line.textContent = text;
    line.className = wrong ? "wrong" : "";
  }

  private wire(): void {
    element("colour").addEventListener("change", () => {
      this.hidden.clear();
      this.map?.filter(null);
      void this.draw();
    });
    for (const name of ["naming", "dense", "thumbs"]) element(name).addEventListener("change", () => this.showMarks());
    element("who").addEventListener("change", () => this.showWho(element<HTMLInputElement>("who").value));
    element("map").addEventListener("keydown", (event) => this.mapKey(event));
    element("thumbs").parentElement!.hidden = !this.facts.pictures;
    element("lasso").addEventListener("click", () => {
      const button = element("lasso");
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      this.map?.lasso(on);
    });
    element("select-shown").addEventListener("click", () => {
      const rows = this.visibleRows();
      this.map?.select(rows);
      this.list = "selection";
      this.select(rows);
    });
    element("reset").addEventListener("click", () => this.map?.reset());
    element("undo").addEventListener("click", () => void this.undo());
    element("learn").addEventListener("click", () => void this.learn());
    element("unlabel").addEventListener("click", () => void this.label(null));
    element("export").addEventListener("click", () => void saveSelection(this.list === "selection" ? this.selection : this.shown.map((example) => example.row)));
    element("similar").addEventListener("click", () => void this.similar());
    for (const tab of document.querySelectorAll<HTMLElement>("[data-list]")) tab.addEventListener("click", () => void this.open(tab.dataset.list as ListName));
    element("tabs").addEventListener("keydown", (event) => this.tabKey(event));
    element<HTMLFormElement>("new").addEventListener("submit", (event) => {
      event.preventDefault();
      const input = element<HTMLInputElement>("new-name");
      const name = input.value;
      input.value = "";
      if (name.trim()) void this.label(name);
    });
    const file = element<HTMLInputElement>("file");
    file.parentElement!.hidden = !this.facts.pictures;
    file.addEventListener("change", () => {
      const chosen = file.files?.[0];
      if (chosen) void this.search(chosen);
      file.value = "";
    });
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("beforeunload", (event) => this.pending.length && event.preventDefault());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.showFacts();
      void this.draw();
    });
  }

  private async search(file: Blob): Promise<void> {
    try {
      this.searched = await upload(file);
      await this.open("search");
    } catch (error) {
      this.say((error as Error).message, true);
    }
  }

  private get who(): string {
    return element<HTMLInputElement>("who").value;
  }

  // The name under which labels are saved: the one given in this browser, else the one that the server knows.
  private showWho(name: string): void {
    element<HTMLInputElement>("who").value = name.trim() || this.facts.who;
    if (name.trim()) localStorage.setItem("who", name.trim());
    else localStorage.removeItem("who");
  }

  // The map by keys: arrows move it, + and - enlarge it.
  private mapKey(event: KeyboardEvent): void {
    const moves: Record<string, [number, number, number?]> = { ArrowRight: [0.2, 0], ArrowLeft: [-0.2, 0], ArrowUp: [0, 0.2], ArrowDown: [0, -0.2], "+": [0, 0, 1.25], "-": [0, 0, 0.8] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    this.map?.move(...move);
  }

  private tabKey(event: KeyboardEvent): void {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const tabs = [...document.querySelectorAll<HTMLElement>("[data-list]")];
    const next = tabs[(tabs.findIndex((tab) => tab.dataset.list === this.list) + by + tabs.length) % tabs.length]!;
    void this.open(next.dataset.list as ListName);
    next.focus();
  }

  private key(event: KeyboardEvent): void {
    if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) {
      if (event.key === "Escape") (event.target as HTMLElement).blur();
      return;
    }
    if (event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void this.undo();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const across = Math.max(1, Math.round(element("grid").clientWidth / ((element("grid").firstElementChild as HTMLElement | null)?.offsetWidth ?? 1)));
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across };
    const acts: Record<string, () => void> = {
      u: () => void this.undo(),
      s: () => void this.similar(),
      l: () => element("lasso").click(),
      n: () => element("new-name").focus(),
      x: () => void this.label(null),
      Delete: () => void this.label(null),
    };
    const named = this.facts.classes.find(({ key }) => key === event.key)?.name;
    const by = steps[event.key];
    if (by !== undefined && (event.target === document.body || element("grid").contains(event.target as Node))) this.step(by, true);
    else if (acts[event.key]) acts[event.key]!();
    else if (named !== undefined) void this.label(named);
    else return;
    event.preventDefault();
  }
}

void new Page().start().catch((error: unknown) => {
  element("status").textContent = (error as Error).message;
});
