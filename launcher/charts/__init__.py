"""Pages that need nothing beside them: charts as Vega-Lite specifications, tables, and the shell that holds them."""
