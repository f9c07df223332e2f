"""What each encoding costs: time and memory of training, evaluation and decoding, beside a model without encoding.

Read in this order, the left column first:

    settings.py     what a user may ask for                   session.py      a bench from start to end
    cases.py        which models, workloads and lengths       comparison.py   a peer beside poscli
    workloads.py    what is timed, on the tokens of           peers/          a model of these sizes in a library, and
                    synthetic.py                                              in plain PyTorch
    timing.py       how it is timed                           columns.py      the columns of the result files
    limits.py       the best that the machine can do          result_file.py  a CSV that grows row by row
    needs.py        memory that a case needs, estimated       rows.py         from timings to the values of a row
    refusals.py     cases that get a status, no number        show.py         tables on the terminal
    conditions.py   what all cases share                      pictures.py     PNG files
"""
