// Kinds that are chosen are shown; none chosen: all.
const buttons = [...document.querySelectorAll(".kinds button")];
const sections = [...document.querySelectorAll("section[data-kind]")];
for (const button of buttons) {
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
    const chosen = new Set(buttons.filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.dataset.kind));
    for (const section of sections) section.hidden = chosen.size > 0 && !chosen.has(section.dataset.kind);
  });
}
