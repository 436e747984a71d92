// Points painted by the processor. A browser without a graphics card needs a microsecond for each point that WebGL draws,
// so that 200,000 points reach 4 frames a second; painting them here takes milliseconds.

import type { Columns } from "./api";
import { back } from "./colours";

// From the coordinates of the map to pixels: x' = a x + c y + e, y' = b x + d y + f.
export type Affine = [number, number, number, number, number, number];

export interface Scene {
  to: Affine;
  size: number;
  selected: number[];
  hovered: number;
  accent: string;
}

export function isSoftware(): boolean {
  const gl = document.createElement("canvas").getContext("webgl");
  if (!gl) return false;
  const more = gl.getExtension("WEBGL_debug_renderer_info");
  const name = String(gl.getParameter(more ? more.UNMASKED_RENDERER_WEBGL : gl.RENDERER));
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  return /swiftshader|llvmpipe|softpipe|software|basic render/i.test(name);
}

function pixel(colour: string): number {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)) as [number, number, number];
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}

// The pixels of a point around its middle, as (dx, dy): a square if it is small, else a disc.
function stamp(size: number): [number, number][] {
  const [low, high] = [-Math.floor(size / 2), Math.ceil(size / 2) - 1];
  const middle = (low + high) / 2;
  const found: [number, number][] = [];
  for (let dy = low; dy <= high; dy++)
    for (let dx = low; dx <= high; dx++) if (size < 4 || Math.hypot(dx - middle, dy - middle) <= size / 2) found.push([dx, dy]);
  return found;
}

// The browser gets one finished opaque picture for each frame: whatever it draws or blends itself on the visible canvas
// goes through WebGL in software.
export class Painter {
  private x: Float32Array = new Float32Array(0);
  private y: Float32Array = new Float32Array(0);
  private codes: Uint16Array = new Uint16Array(0);
  private colours = new Uint32Array(0);
  private shown: Uint8Array | null = null;
  private image = new ImageData(1, 1);
  private pixels = new Uint32Array(1);
  private readonly stage = document.createElement("canvas").getContext("2d", { willReadFrequently: true })!; // in memory

  // The canvas on which the pictures will appear; nobody may have drawn on it before.
  constructor(canvas: HTMLCanvasElement) {
    canvas.getContext("2d", { alpha: false });
  }

  set(data: Columns, codes: Uint16Array, colours: string[]): void {
    this.x = data.x;
    this.y = data.y;
    this.codes = codes;
    this.colours = Uint32Array.from(colours, pixel);
  }

  show(rows: number[] | null): void {
    this.shown = rows && new Uint8Array(this.x.length);
    rows?.forEach((row) => (this.shown![row] = 1));
  }

  // Paint the points, and over them what `over` draws.
  paint(canvas: HTMLCanvasElement, scene: Scene, over: (context: CanvasRenderingContext2D) => void): void {
    const context = canvas.getContext("2d");
    if (!context || !canvas.width || !canvas.height) return;
    if (this.image.width !== canvas.width || this.image.height !== canvas.height) {
      [this.stage.canvas.width, this.stage.canvas.height] = [canvas.width, canvas.height];
      this.image = context.createImageData(canvas.width, canvas.height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(pixel(back()));
    this.points(scene, null, scene.size, null);
    const marked = scene.hovered >= 0 ? [...scene.selected, scene.hovered] : scene.selected;
    if (marked.length < 1000) this.points(scene, marked, scene.size + 5, pixel(back()));
    this.points(scene, marked, scene.size + 2, pixel(scene.accent));
    this.stage.putImageData(this.image, 0, 0);
    over(this.stage);
    context.putImageData(this.stage.getImageData(0, 0, canvas.width, canvas.height), 0, 0);
  }

  // Points of all shown rows, or of some, in the colour of their code, or in one.
  private points(scene: Scene, some: number[] | null, size: number, one: number | null): void {
    const { x, y, codes, colours, shown, pixels } = this;
    const { width, height } = this.image;
    const [a, b, c, d, e, f] = scene.to;
    const dots = stamp(size);
    const offsets = Int32Array.from(dots, ([dx, dy]) => dy * width + dx);
    const edge = Math.ceil(size / 2);
    const count = some ? some.length : x.length;
    for (let place = 0; place < count; place++) {
      const row = some ? some[place]! : place;
      if (shown && !shown[row]) continue;
      const [across, down] = [Math.floor(a * x[row]! + c * y[row]! + e), Math.floor(b * x[row]! + d * y[row]! + f)];
      if (across < -edge || down < -edge || across >= width + edge || down >= height + edge) continue;
      const colour = one ?? colours[codes[row]!]!;
      if (across >= edge && down >= edge && across < width - edge && down < height - edge) {
        const at = down * width + across;
        for (let dot = 0; dot < offsets.length; dot++) pixels[at + offsets[dot]!] = colour;
        continue;
      }
      for (const [dx, dy] of dots) {
        const [column, line] = [across + dx, down + dy];
        if (column >= 0 && line >= 0 && column < width && line < height) pixels[line * width + column] = colour;
      }
    }
  }
}
