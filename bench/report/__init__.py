"""The page, from the results alone: nothing here measures, and nothing needs a rival."""
