#!/usr/bin/env python3
"""An independent implementation of the sampler's permutation: prints the golden values of sampler_test.cc."""

MASK = (1 << 64) - 1


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def permutation(n, seed, epoch):
    state = mix((mix(seed) + epoch) & MASK)
    order = list(range(n))
    for left in range(n, 1, -1):
        reject_below = (1 << 64) % left
        draw = -1
        while draw < reject_below:
            state = (state + 0x9E3779B97F4A7C15) & MASK
            draw = mix(state)
        other = draw % left
        order[left - 1], order[other] = order[other], order[left - 1]
    return order


if __name__ == "__main__":
    for arguments in [(10, 0, 0), (10, 1, 0), (10, 1, 1), (1000000, 42, 7)]:
        values = permutation(*arguments)
        print(arguments, ", ".join(map(str, values if len(values) <= 10 else values[:4])))
