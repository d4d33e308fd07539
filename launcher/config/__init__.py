"""Configuration: the command line, recipes, option groups, trust and composition; only this room imports Hydra."""
