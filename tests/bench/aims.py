"""Expected results of a benchmark, in the form NAME=NUMBER."""


def missed_aims(aims, found, at_most=()):
    """Prints whether `found` (numbers by name; None or absent: not measured) meets each aim; returns the missed aims."""
    missed = []
    for aim in aims:
        name, _, number = aim.partition("=")
        value = found.get(name)
        least = name not in at_most
        if value is None:
            verdict = "not measured"
        elif value >= float(number) if least else value <= float(number):
            verdict = f"{value:.4g}, met"
        else:
            verdict = f"{value:.4g}, MISSED"
            missed.append(aim)
        print(f"  aim {name} {'at least' if least else 'at most'} {number}: {verdict}", flush=True)
    return missed
