// Colours that colour-blind people tell apart, for a light and a dark page.

const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#A0522D", "#7F00FF", "#AA0044"];
const DARK = ["#4AA8E0", "#F0874A", "#2EC79B", "#E39CC3", "#F0B429", "#8CD3F5", "#FFFFFF", "#D08A63", "#B07CFF", "#FF6B9A"];
const RAMP_LIGHT = ["#B9D9EC", "#8CC3E4", "#56B4E9", "#2786C0", "#0B4F7D"];
const RAMP_DARK = ["#0F3A57", "#1D6594", "#3B97CF", "#86C7EF", "#DFF2FD"];

export const isDark = (): boolean => matchMedia("(prefers-color-scheme: dark)").matches;
export const none = (): string => (isDark() ? "#6D7480" : "#A8ADB6");
export const back = (): string => (isDark() ? "#1B1E23" : "#F7F8FA");
export const ink = (): string => (isDark() ? "#ECEEF2" : "#1B1D21");
export const ramp = (): string[] => (isDark() ? RAMP_DARK : RAMP_LIGHT);

export function classColour(number: number): string {
  const colours = isDark() ? DARK : LIGHT;
  return number < 0 ? none() : (colours[number % colours.length] as string);
}
