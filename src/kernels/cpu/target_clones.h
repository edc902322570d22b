// XFFL_TARGET_CLONES("avx2", "default"): the compiler compiles the function once for each target,
// and the loader picks the best one that the processor has.
//
// Sanitizers' runtimes start after the loader has chosen a target, so sanitizer builds have the
// default target alone.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define XFFL_TARGET_CLONES(...) [[gnu::target_clones(__VA_ARGS__)]]
#else
#define XFFL_TARGET_CLONES(...)
#endif
