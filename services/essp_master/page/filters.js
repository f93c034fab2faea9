// The filters above a list of what happened, and how many of its items are shown.

import { el, redraw } from "./dom.js";
import { count } from "./words.js";

const STEP = 200;

export class Filters {
  without = new Set(); // groups that are not wanted
  text = ""; // what an item has to have
  most = STEP;

  /** `titles`: of the groups. `groupOf`, `textOf`: of an item. `items`: what they are, in words. */
  constructor(titles, groupOf, textOf, items) {
    Object.assign(this, { titles, groupOf, textOf, items });
  }

  /** Begin with the newest again, whatever their text, as for another job. */
  reset() {
    this.text = "";
    this.most = STEP;
  }

  /** The items that are wanted, newest first. */
  wanted(all) {
    const part = this.text.toLowerCase();
    return all.filter(item => !this.without.has(this.groupOf(item)) && (!part || this.textOf(item).toLowerCase().includes(part))).reverse();
  }

  /** A button for each group, which says how many of its items there are. */
  chips(all) {
    return Object.keys(this.titles).map(group => el("button",
      { type: "button", class: "chip", "data-key": group, "data-group": group, "aria-pressed": String(!this.without.has(group)), onclick: this.toggle },
      `${this.titles[group]} ${count(all.filter(item => this.groupOf(item) === group).length)}`));
  }

  /** Where the text is written. */
  search() {
    return el("input", { type: "search", "aria-label": `only ${this.items} with this text`, placeholder: "Filter", oninput: this.narrow });
  }

  /** The list of those that are found, as `shown` draws each; `none`: why there are none at all. */
  list(found, all, shown, kind, none) {
    return found.length ? el("ol", { class: kind, tabindex: "0", "aria-label": `${this.items}, newest first` }, found.slice(0, this.most).map(shown))
      : el("p", { class: "empty" }, all.length ? `No ${this.items} match these filters.` : none);
  }

  /** The button that shows more; null if all are shown. */
  older(found) {
    return found.length > this.most ? el("button", { type: "button", onclick: this.more }, `Show ${count(Math.min(STEP, found.length - this.most))} older ones`) : null;
  }

  toggle = event => {
    const { group } = event.currentTarget.dataset;
    if (!this.without.delete(group)) this.without.add(group);
    redraw();
  };

  narrow = event => {
    this.text = event.currentTarget.value;
    redraw();
  };

  more = () => {
    this.most += STEP;
    redraw();
  };
}
