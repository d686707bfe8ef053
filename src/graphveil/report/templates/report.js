"use strict";
// Tables are complete without this script. It adds sorting, and opens what is folded for printing.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const numeric = head.dataset.sort === "number";
      const value = (row) => {
        const text = row.cells[column].dataset.value;
        return numeric ? (text === "" ? null : Number(text)) : text;
      };
      const rows = Array.from(body.rows);
      rows.sort((one, other) => {
        // Without a proven guarantee there is no rank: such rows stay last, and so do empty cells.
        // Nor does a model have one by its scores that is no better than a guess.
        for (const low of "score" in head.dataset ? ["unranked", "failed"] : ["unranked"]) {
          const last = one.classList.contains(low) - other.classList.contains(low);
          if (last) return last;
        }
        const a = value(one);
        const b = value(other);
        if (a === null || b === null) return (a === null) - (b === null);
        const order = numeric ? a - b : a.localeCompare(b);
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
}
const folded = () => document.querySelectorAll("details:not([open])");
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = Array.from(folded());
  for (const part of opened) part.open = true;
});
window.addEventListener("afterprint", () => {
  for (const part of opened) part.open = false;
});
