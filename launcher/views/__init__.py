"""Every table, page and plot that a person sees; nothing is started, submitted or judged here."""
