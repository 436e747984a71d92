// The map: all points with a lasso, drawn by WebGL, or by the processor where that is software, too.

import createScatterplot, { createRenderer } from "regl-scatterplot";
import type { ClassOf, Columns } from "./api";
import { back, classColour, none, ramp } from "./colours";
import type { Line } from "./density";
import { drawMarks, NO_MARKS, stroke } from "./marks";
import type { Marks } from "./marks";
import { isSoftware, Painter } from "./painter";
import type { Affine, Scene } from "./painter";

const MANY = 20000; // points that WebGL draws as opaque squares from here on, which is several times faster
const ACCENT = "#FFB000";

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
  private readonly painter: Painter | null;
  private readonly baseSize: number; // pixels of a point before the map is enlarged
  private drawn: Promise<unknown> = Promise.resolve();
  private shown: number[] | null = null;
  private around: Line = []; // the lasso that is being drawn
  private marks: Marks = NO_MARKS;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    count: number,
    private readonly listen: Listeners,
  ) {
    this.baseSize = count > 50000 ? 2 : count > 5000 ? 4 : 7;
    const box = canvas.getBoundingClientRect();
    this.painter = isSoftware() && !new URLSearchParams(location.search).has("webgl") ? new Painter(canvas) : null;
    this.plot = createScatterplot({
      canvas,
      width: box.width,
      height: box.height,
      backgroundColor: back(),
      pointColorActive: ACCENT,
      pointColorHover: ACCENT,
      lassoColor: ACCENT,
      lassoOnLongPress: false,
      deselectOnDblClick: false,
      pointSizeSelected: 2,
      performanceMode: count > MANY,
      showReticle: false,
      ...(this.painter ? { renderer: this.paintingRenderer(this.painter) } : {}),
    });
    this.plot.subscribe("select", ({ points }) => this.listen.selected([...points]));
    this.plot.subscribe("pointOver", (row) => this.listen.over(row));
    this.plot.subscribe("pointOut", () => this.listen.over(null));
    this.plot.subscribe("lassoExtend", ({ coordinates }) => (this.around = coordinates as unknown as Line));
    this.plot.subscribe("lassoEnd", () => (this.around = []));
    if (!this.painter) this.plot.subscribe("drawing", () => this.drawOver(canvas.getContext("2d")!));
    new ResizeObserver(() => {
      const size = canvas.parentElement!.getBoundingClientRect();
      if (size.width > 0) this.plot.set({ width: size.width, height: size.height });
    }).observe(canvas.parentElement!);
  }

  // What the plot draws with: as its own, except that points are painted.
  private paintingRenderer(painter: Painter): ReturnType<typeof createRenderer> {
    const small = document.createElement("canvas");
    small.width = small.height = 1;
    const scene = (): Scene => ({
      to: this.toPixels().map((value) => value * devicePixelRatio) as Affine,
      size: Math.max(1, Math.round(this.pointSize() * devicePixelRatio)),
      selected: this.plot.get("selectedPoints"),
      hovered: this.plot.get("hoveredPoint"),
      accent: ACCENT,
    });
    const paint = (_: unknown, target: HTMLCanvasElement): void => painter.paint(target, scene(), (context) => this.drawOver(context));
    return Object.create(createRenderer({ canvas: small }), { render: { value: paint } }) as ReturnType<typeof createRenderer>;
  }

  // Points grow slower than the map when it is enlarged.
  private pointSize(): number {
    const scale = this.plot.get("camera").scaling[0];
    return this.baseSize * (scale > 1 ? Math.asinh(scale) / Math.asinh(1) : Math.max(0.5, scale));
  }

  // From the coordinates of the map to pixels of the page.
  private toPixels(): Affine {
    const view = this.plot.get("cameraView");
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    const across = height / 2; // the map is as high as the frame, and as wide as it is high
    return [view[0]! * across, -view[1]! * (height / 2), view[4]! * across, -view[5]! * (height / 2), width / 2 + view[12]! * across, (1 - view[13]!) * (height / 2)];
  }

  lasso(on: boolean): void {
    this.plot.set({ mouseMode: on ? "lasso" : "panZoom" });
  }

  draw(data: Columns, codes: Uint16Array, colours: string[]): Promise<unknown> {
    const count = data.x.length;
    this.painter?.set(data, codes, colours);
    this.plot.set({
      backgroundColor: back(),
      colorBy: "category",
      pointColor: colours,
      pointSize: this.baseSize,
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
    this.painter?.show(rows);
    this.drawn = this.drawn.then(() => (rows ? this.plot.filter(rows, { preventEvent: true }) : this.plot.unfilter({ preventEvent: true })));
  }

  // The pixels of a place on the map, from the corner of the frame.
  place(x: number, y: number): [number, number] {
    const [a, b, c, d, e, f] = this.toPixels();
    return [a * x + c * y + e, b * x + d * y + f];
  }

  mark(marks: Marks): void {
    this.marks = marks;
    for (const { image } of marks.pictures) image.addEventListener("load", () => this.plot.redraw());
    this.plot.redraw();
  }

  private drawOver(context: CanvasRenderingContext2D): void {
    context.save();
    context.scale(devicePixelRatio, devicePixelRatio);
    drawMarks(context, this.marks, this.toPixels());
    if (this.painter && this.around.length > 1) stroke(context, [this.around], this.toPixels(), ACCENT, 2);
    context.restore();
  }

  // Move by shares of the frame, and enlarge.
  move(right: number, up: number, larger = 1): void {
    const camera = this.plot.get("camera");
    if (larger === 1) camera.pan([-right, -up]);
    else camera.scale([larger, larger], [0, 0]);
    this.plot.redraw();
  }

  reset(): void {
    this.plot.reset();
  }
}

export function encoded(data: Columns, colourBy: ColourBy, classes: ClassOf[]): { codes: Uint16Array; colours: string[] } {
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
  const most = Math.max(0, ...classes.map(({ colour }) => colour));
  return { codes, colours: [none(), ...Array.from({ length: most + 1 }, (_, colour) => classColour(colour))] };
}

export function groups(colourBy: ColourBy, classes: ClassOf[]): Group[] {
  if (colourBy === "confidence") {
    const names = ["below 20\u00a0%", "20 to 40\u00a0%", "40 to 60\u00a0%", "60 to 80\u00a0%", "80\u00a0% and more"];
    return names.map((name, code) => ({ name, colour: ramp()[code]!, code }));
  }
  if (colourBy === "labelled") {
    return [
      { name: "labelled", colour: classColour(0), code: 1 },
      { name: "unlabelled", colour: none(), code: 0 },
    ];
  }
  const named = classes.map(({ name, colour }) => ({ name, colour: classColour(colour), code: colour + 1 }));
  return [...named, { name: "no label", colour: none(), code: 0 }];
}
