// The theory lab: keeps what was entered, asks the server what follows from it, and shows the answer.
"use strict";
window.Cactus = window.Cactus || {};

// A control for a declared parameter: a list, or a slider with its number. Calls changed(value).
Cactus.dial = (parameter, value, changed) => {
  const box = Cactus.node("label", "dial"), name = Cactus.node("span", "dial-name", parameter.label);
  box.title = parameter.help;
  box.append(name);
  if (parameter.choices) {
    const list = document.createElement("select");
    list.append(...parameter.choices.map((choice) => new Option(choice, choice, false, choice === value)));
    list.addEventListener("change", () => changed(list.value));
    box.append(list);
    return box;
  }
  const { slider, field } = Cactus.slide(value, parameter.minimum, parameter.maximum, parameter.step, parameter.label, changed);
  box.append(slider, field);
  return box;
};

// A slider and a number field that follow each other.
Cactus.slide = (value, least, most, step, label, changed) => {
  const make = (type, unit) => {
    const input = document.createElement("input");
    Object.assign(input, { type, min: least, max: most, step: unit, value, ariaLabel: label });
    return input;
  };
  const slider = make("range", step), field = make("number", type(step));
  slider.addEventListener("input", () => { field.value = slider.value; changed(slider.valueAsNumber); });
  field.addEventListener("input", () => {
    if (!Number.isFinite(field.valueAsNumber)) return;
    slider.value = field.value;
    changed(field.valueAsNumber);
  });
  return { slider, field };
  function type(unit) { return unit >= 1 ? unit : "any"; }
};

Cactus.lab = (element, props, watch, server) => {
  const find = (selector) => element.querySelector(selector);
  const canvases = [...element.querySelectorAll(".lab-plot")].map(Cactus.canvas);
  let told = {}, state = {}, busy = false, again = false;

  const derive = async () => {
    again = busy;
    if (busy) return;
    busy = true;
    try {
      show(await server.derive(state));
    } catch {
      show({ error: "The server does not answer. What is shown is from before." });
    }
    busy = false;
    if (again) derive();
  };

  const show = (answer) => {
    find(".lab-error").textContent = answer.error || "";
    if (answer.error) return;
    Cactus.fillTable(find(".lab-matrix"), answer.matrix);
    Cactus.fillTable(find(".lab-verdicts"), answer.verdicts);
    find(".lab-facts").replaceChildren(...answer.facts.flatMap(([name, value]) => [Cactus.node("dt", "", name), Cactus.node("dd", "", value)]));
    if (!again) answer.points.forEach((points, index) => canvases[index].replace(points)); // figures wait for the hand to rest
    find(".lab-apart").textContent = answer.apart;
    element.dataset.shown = String(Number(element.dataset.shown || 0) + 1);
  };

  const touched = () => { find(".lab-preset").value = ""; derive(); };

  const row = (entry, index) => {
    const line = Cactus.node("div", "lab-row"), mark = document.createElement("input"), name = document.createElement("input");
    Object.assign(mark, { type: "radio", name: "lab-drafted", checked: index === state.drafted, ariaLabel: `Token ${index + 1} was drafted` });
    mark.addEventListener("change", () => { state.drafted = index; derive(); });
    Object.assign(name, { value: entry[0], maxLength: 24, ariaLabel: `Name of token ${index + 1}` });
    name.addEventListener("input", () => { entry[0] = name.value; touched(); });
    const drop = Cactus.node("button", "lab-drop", "×");
    Object.assign(drop, { type: "button", ariaLabel: `Remove token ${index + 1}`, disabled: state.rows.length <= told.limits[0] });
    drop.addEventListener("click", () => {
      state.rows.splice(index, 1);
      state.drafted = Math.max(0, state.drafted - (index <= state.drafted ? 1 : 0));
      edited();
    });
    line.append(mark, name);
    for (const [place, model] of [[1, "draft"], [2, "verifier"]]) {
      const shown = Number(entry[place].toFixed(5));
      const { slider, field } = Cactus.slide(shown, 0, 1, 0.01, `${model} probability of token ${index + 1}`, (value) => { entry[place] = value; touched(); });
      slider.className = "of-" + model;
      line.append(slider, field);
    }
    line.append(drop);
    return line;
  };

  // The tokens changed, not a number alone: the rows are made anew.
  const edited = (asked = true) => {
    const head = Cactus.node("div", "lab-row lab-row-head");
    head.append(...["", "token", "draft p", "verifier q", ""].map((text) => Cactus.node("span", "", text)));
    find(".lab-rows").replaceChildren(head, ...state.rows.map(row));
    find(".lab-add").disabled = state.rows.length >= told.limits[1];
    asked ? touched() : derive();
  };

  const take = (rows, drafted, note, preset) => {
    Object.assign(state, { rows: rows.map((entry) => [...entry]), drafted });
    find(".lab-note").textContent = note;
    edited(false);
    find(".lab-preset").value = preset;
  };

  const quantities = () => {
    const pick = ({ name, label, title }) => {
      const button = Cactus.node("button", "", label);
      Object.assign(button, { type: "button", title });
      button.setAttribute("role", "radio");
      button.addEventListener("click", () => choose(name));
      return button;
    };
    const choose = (name) => {
      state.quantity = name;
      told.quantities.forEach((quantity, index) => {
        const on = quantity.name === name, button = find(".lab-quantity").children[index];
        button.setAttribute("aria-checked", String(on));
        if (on) find(".lab-what").textContent = quantity.title;
      });
      derive();
    };
    find(".lab-quantity").replaceChildren(...told.quantities.map(pick));
    choose(state.quantity);
  };

  const begin = () => {
    const [first] = told.quantities;
    Object.assign(state, { params: {}, curve: {}, quantity: first.name, rows: told.rows, drafted: told.drafted });
    find(".lab-preset").replaceChildren(new Option("own numbers", ""), ...told.presets.map((preset) => new Option(preset.label, preset.name)));
    find(".lab-rules").replaceChildren(...told.rules.map((rule) => {
      const box = Cactus.node("div", "lab-rule"), own = (state.params[rule.name] = {});
      const title = Cactus.node("span", "lab-rule-name", rule.label);
      title.title = rule.title;
      box.append(title, ...rule.parameters.map((parameter) => {
        own[parameter.name] = parameter.default;
        return Cactus.dial(parameter, parameter.default, (value) => { own[parameter.name] = value; derive(); });
      }));
      return box;
    }));
    find(".lab-dials").replaceChildren(...told.curve.map((parameter) => {
      state.curve[parameter.name] = parameter.default;
      return Cactus.dial(parameter, parameter.default, (value) => { state.curve[parameter.name] = value; derive(); });
    }));
    told.figures.forEach((figure, index) => canvases[index].show(figure));
    quantities();
  };

  find(".lab-preset").addEventListener("change", (event) => {
    const preset = told.presets.find(({ name }) => name === event.target.value);
    if (preset) take(preset.tokens.map((token, i) => [token, preset.draft_probs[i], preset.verifier_probs[i]]), preset.drafted, preset.shows, preset.name);
  });
  find(".lab-add").addEventListener("click", () => { state.rows.push(["new", 0, 0]); edited(); });
  find(".lab-norm").addEventListener("click", () => {
    for (const place of [1, 2]) {
      const sum = state.rows.reduce((total, entry) => total + entry[place], 0);
      if (sum > 0) for (const entry of state.rows) entry[place] /= sum;
    }
    edited();
  });
  Cactus.parsed(props, watch, (opening) => {
    const fresh = !told.rules;
    told = opening;
    if (fresh) begin();
    take(told.rows, told.drafted, told.note, told.preset);
  });
};
