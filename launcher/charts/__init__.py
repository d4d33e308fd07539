"""Self-contained HTML pages: charts as Vega-Lite specifications, tables, and the page around them."""
