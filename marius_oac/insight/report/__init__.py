"""`marius-oac report`: what runs have recorded, as one HTML file that needs nothing else.

history     what a run's folder holds, checked
comparison  configurations and bits of several runs
curves      values over batches, seconds and epochs
parts       what a page consists of, as data: sections, tables, figures
lines       figures of curves
drawing     figures as SVG
page        the HTML file

The other modules make its sections.
"""
