// The map: all points on the GPU, with a lasso; it goes without where a browser has no WebGL.

import createScatterplot from "regl-scatterplot";
import type { Columns } from "./api";
import { back, classColour, none, ramp } from "./colours";

const MANY = 20000; // points that are drawn as opaque squares from here on, which is several times faster

export type ColourBy = "label" | "predicted" | "confidence" | "labelled";

export interface Group {
  name: string;
  colour: string;
  code: number;
}

interface Listeners {
  selected: (rows: number[]) => void;
  over: (row: number | null) => void;
}

export class PointMap {
  private readonly plot;
  private drawn: Promise<unknown> = Promise.resolve();
  private shown: number[] | null = null;

  constructor(
    canvas: HTMLCanvasElement,
    count: number,
    private readonly listen: Listeners,
  ) {
    const box = canvas.getBoundingClientRect();
    this.plot = createScatterplot({
      canvas,
      width: box.width,
      height: box.height,
      backgroundColor: back(),
      pointColorActive: "#FFB000",
      pointColorHover: "#FFB000",
      lassoColor: "#FFB000",
      lassoOnLongPress: false,
      deselectOnDblClick: false,
      pointSizeSelected: 2,
      performanceMode: count > MANY,
      showReticle: false,
    });
    this.plot.subscribe("select", ({ points }) => this.listen.selected([...points]));
    this.plot.subscribe("pointOver", (row) => this.listen.over(row));
    this.plot.subscribe("pointOut", () => this.listen.over(null));
    new ResizeObserver(() => {
      const size = canvas.parentElement!.getBoundingClientRect();
      if (size.width > 0) this.plot.set({ width: size.width, height: size.height });
    }).observe(canvas.parentElement!);
  }

  lasso(on: boolean): void {
    this.plot.set({ mouseMode: on ? "lasso" : "panZoom" });
  }

  draw(data: Columns, codes: Uint16Array, colours: string[]): Promise<unknown> {
    const count = data.x.length;
    this.plot.set({
      backgroundColor: back(),
      colorBy: "category",
      pointColor: colours,
      pointSize: count > 50000 ? 2 : count > 5000 ? 4 : 7,
      opacity: count > 50000 ? 0.5 : 0.85,
    });
    const points = { x: data.x, y: data.y, z: codes };
    this.drawn = this.drawn.then(() =>
      this.plot.draw(points, { zDataType: "categorical", ...(this.shown ? { filter: this.shown } : {}) }),
    );
    return this.drawn;
  }

  select(rows: number[]): void {
    this.drawn = this.drawn.then(() => this.plot.select(rows, { preventEvent: true }));
  }

  filter(rows: number[] | null): void {
    this.shown = rows;
    this.drawn = this.drawn.then(() => (rows ? this.plot.filter(rows, { preventEvent: true }) : this.plot.unfilter({ preventEvent: true })));
  }

  place(row: number): [number, number] | undefined {
    return this.plot.getScreenPosition(row);
  }

  onView(tell: () => void): void {
    this.plot.subscribe("view", tell);
  }

  reset(): void {
    this.plot.reset();
  }
}

export function encoded(data: Columns, colourBy: ColourBy, classes: number): { codes: Uint16Array; colours: string[] } {
  const codes = new Uint16Array(data.x.length);
  if (colourBy === "confidence") {
    data.confidence.forEach((share, row) => (codes[row] = Math.min(4, Math.floor(share * 5))));
    return { codes, colours: ramp() };
  }
  if (colourBy === "labelled") {
    data.label.forEach((number, row) => (codes[row] = number < 0 ? 0 : 1));
    return { codes, colours: [none(), classColour(0)] };
  }
  const numbers = colourBy === "label" ? data.label : data.predicted;
  numbers.forEach((number, row) => (codes[row] = number + 1));
  return { codes, colours: [none(), ...Array.from({ length: Math.max(1, classes) }, (_, number) => classColour(number))] };
}

export function groups(colourBy: ColourBy, classes: string[]): Group[] {
  if (colourBy === "confidence") {
    const names = ["below 20 %", "20 to 40 %", "40 to 60 %", "60 to 80 %", "80 % and more"];
    return names.map((name, code) => ({ name, colour: ramp()[code]!, code }));
  }
  if (colourBy === "labelled") {
    return [
      { name: "labelled", colour: classColour(0), code: 1 },
      { name: "unlabelled", colour: none(), code: 0 },
    ];
  }
  const named = classes.map((name, number) => ({ name, colour: classColour(number), code: number + 1 }));
  return [...named, { name: "no label", colour: none(), code: 0 }];
}
