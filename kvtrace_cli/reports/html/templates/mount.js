// Draw each chart from what stands beside it. Errors are shown where the picture would be.
const rowsOf = (columns) => {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, row) =>
    Object.fromEntries(names.map((name) => [name, columns[name][row]])),
  );
};

const drawn = [];
for (const holder of document.querySelectorAll(".chart")) {
  const { spec, data } = JSON.parse(holder.nextElementSibling.textContent);
  spec.datasets = Object.fromEntries(
    Object.entries(data).map(([name, columns]) => [name, rowsOf(columns)]),
  );
  const options = {
    actions: false,
    // Expressions are interpreted: the page's policy forbids making code from text.
    ast: true,
    renderer: "svg",
    tooltip: { disableDefaultStyle: true },
  };
  const drawing = vegaEmbed(holder, spec, options).then(
    () => holder.setAttribute("data-drawn", "yes"),
    (error) => {
      holder.setAttribute("data-drawn", "no");
      holder.textContent = `This chart could not be drawn: ${error}`;
    },
  );
  drawn.push(drawing);
}

// A hidden chart has no width to be drawn in, so what is not chosen is hidden when all are drawn.
Promise.all(drawn).then(() => {
  for (const choice of document.querySelectorAll(".choice")) {
    const select = choice.querySelector("select");
    const options = [...choice.querySelectorAll(":scope > .option")];
    const choose = () => {
      options.forEach((option, number) => {
        option.hidden = number !== select.selectedIndex;
      });
      // The window may have changed its width since the chart was drawn.
      window.dispatchEvent(new Event("resize"));
    };
    options.forEach((option) => option.querySelector("h4").remove());
    select.addEventListener("change", choose);
    select.closest("p").hidden = false;
    choose();
  }
  document.body.setAttribute("data-ready", "yes");
});
