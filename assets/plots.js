// Figures, drawn by Plotly.react, so that zoom and pan survive. A live plot is a bare figure and points for it.
"use strict"; window.Cactus = window.Cactus || {};

// One figure in one node, in the colours of the page: shown anew, with points appended, or with points replaced.
Cactus.canvas = (node) => {
  const apart = 160; // milliseconds between two drawings of one figure
  let figure = null, revision = 0, run = 0, waiting = false, last = 0;

  const color = (name) => getComputedStyle(node).getPropertyValue(name).trim();

  const themed = () => {
    const text = color("--plot-text"), grid = color("--plot-grid"), card = color("--plot-card");
    const axis = (own) => ({ ...own, gridcolor: grid, linecolor: grid, tickcolor: grid, showline: true, fixedrange: false });
    const layout = figure.layout;
    return {
      ...layout,
      // On a phone the legend takes two rows: the title needs to stand above both.
      margin: node.clientWidth < 400 ? { ...layout.margin, t: 68 } : layout.margin,
      font: { ...layout.font, color: text, family: getComputedStyle(node).fontFamily },
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
      hoverlabel: { bgcolor: card, bordercolor: grid, font: { color: text } },
      autosize: true,
      uirevision: run,
      datarevision: ++revision,
    };
  };

  const draw = () => {
    waiting = false;
    if (!figure || !node.isConnected) return;
    if (!window.Plotly) return void setTimeout(touch, 100);
    last = performance.now();
    Plotly.react(node, figure.data, themed(), {
      responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false,
    });
  };

  const touch = () => {
    if (waiting) return;
    waiting = true;
    const wait = Math.max(0, last + apart - performance.now());
    setTimeout(() => (document.hidden ? draw() : requestAnimationFrame(draw)), wait);
  };

  // A tab opens, a phone is turned: the figure takes the width it is given then.
  new ResizeObserver(() => { if (figure && node.clientWidth) touch(); }).observe(node);
  new MutationObserver(touch).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  return {
    show: (fresh) => { figure = fresh; run += 1; touch(); },
    extend: (points) => {
      const add = ([index, added]) => Object.entries(added).forEach(([name, values]) => figure.data[index][name].push(...values));
      Object.entries(points).forEach(add);
      touch();
    },
    replace: (points) => {
      for (const [index, whole] of Object.entries(points)) Object.assign(figure.data[index], whole);
      touch();
    },
  };
};

Cactus.plot = (element, props, watch) => {
  const canvas = Cactus.canvas(element.firstElementChild);
  Cactus.follow(props, watch, (record) => {
    if (!record) return;
    if (record.figure) canvas.show(record.figure);
    if (record.extend) canvas.extend(record.extend);
    if (record.replace) canvas.replace(record.replace);
  });
};
