"""`marius-oac report`: what runs have recorded, as one HTML file that needs nothing else.

history     what a run's folder holds, checked
comparison  configurations and bits of several runs
sections    what the page says, as data: titles, sentences, tables, figures
curves      values over batches, seconds and epochs
drawing     figures as SVG
page        the HTML file
"""
