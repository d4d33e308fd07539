"""Text that people read: numbers with their units, and what would act on a terminal written out."""
