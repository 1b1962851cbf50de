"""How pictures of measurements look."""

STYLE = """<style>
  text { font-family: sans-serif; font-size: 12px; fill: #24292f; }
  .title { font-size: 14px; font-weight: bold; }
  .grid { stroke: #d0d7de; stroke-width: 1; }
  .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .grid { stroke: #3d444d; }
  }
</style>"""
# Told apart on white and on black.
COLORS = ("#2f81f7", "#d1570b", "#2da44e", "#bf3989", "#8250df", "#9a6700", "#1b9e9e", "#cf222e", "#768390", "#6e9b00")
