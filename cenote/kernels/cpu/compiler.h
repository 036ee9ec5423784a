/* What the compiler knows: an older one leaves out levels, not the library. */
#ifndef CENOTE_COMPILER_H
#define CENOTE_COMPILER_H

#ifndef COMPILER_VERSION /* tests set an older one */
#define COMPILER_VERSION __GNUC__
#endif

#define KNOWS_ARM_I8MM_AND_BF16 (COMPILER_VERSION >= 10)
#define KNOWS_AVX_VNNI_AND_AVX512_BF16 (COMPILER_VERSION >= 11)
#define KNOWS_AMX (COMPILER_VERSION >= 11)

#endif
