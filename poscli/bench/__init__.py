"""What each encoding costs: time and memory of training, evaluation and decoding, beside a model without encoding.

Read in this order, the left column first:

    settings.py     what a user may ask for                   session.py      a bench from start to end
    cases.py        which models, workloads and lengths       comparison.py   another library beside poscli
    workloads.py    what is timed, on the tokens of           peers.py        models of another library
                    synthetic.py                              columns.py      the columns of the result files
    timing.py       how it is timed                           result_file.py  a CSV that grows row by row
    limits.py       the best that the machine can do          rows.py         from timings to the values of a row
    needs.py        memory that a case needs, estimated       show.py         tables on the terminal
    refusals.py     cases that get a status, no number        pictures.py     PNG files
    conditions.py   what all cases share
"""
