// What lies over the points, drawn on the same canvas: contour lines, the lasso, small pictures and names. Elements of the
// page in their place cost the browser more time than the points.

import { back, ink } from "./colours";
import type { Line } from "./density";
import type { Affine } from "./painter";

const SIDE = 30; // pixels of a small picture
const FONT = "600 14px system-ui, sans-serif";

export interface Marks {
  contours: Line[];
  names: { x: number; y: number; text: string }[];
  pictures: { x: number; y: number; image: HTMLImageElement }[];
}

export const NO_MARKS: Marks = { contours: [], names: [], pictures: [] };

const moved = ([a, b, c, d, e, f]: Affine, x: number, y: number): [number, number] => [a * x + c * y + e, b * x + d * y + f];

export function stroke(context: CanvasRenderingContext2D, lines: Line[], to: Affine, colour: string, width: number): void {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.beginPath();
  for (const line of lines) line.forEach(([x, y], place) => (place ? context.lineTo(...moved(to, x, y)) : context.moveTo(...moved(to, x, y))));
  context.stroke();
}

export function drawMarks(context: CanvasRenderingContext2D, { contours, names, pictures }: Marks, to: Affine): void {
  if (contours.length) stroke(context, contours, to, `${ink()}99`, 1);
  for (const { x, y, image } of pictures) {
    const [right, down] = moved(to, x, y);
    if (image.complete && image.naturalWidth) context.drawImage(image, right - SIDE / 2, down - SIDE / 2, SIDE, SIDE);
  }
  context.font = FONT;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const { x, y, text } of names) {
    const [right, down] = moved(to, x, y);
    const wide = context.measureText(text).width + 8;
    context.fillStyle = `${back()}C8`;
    context.fillRect(right - wide / 2, down - 10, wide, 20);
    context.fillStyle = ink();
    context.fillText(text, right, down);
  }
}
