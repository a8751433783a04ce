"""The web page: what it shows and how it answers.

`settings` says what can be chosen, `render` and `plots` turn records into what the browser draws, `view` grows
with a run, `desk` keeps one place per visitor, `handlers` answer events, `layout` joins them. Sees `session` and
`trace`; knows nothing of models or tensors.
"""
