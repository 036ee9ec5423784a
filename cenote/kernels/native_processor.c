/* CPU detection; compiled for the baseline instruction set, since it runs on any x86-64 processor. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Return whether the CPU has AMX for bfloat16 and int8, and AVX-512, and the kernel grants this process the use of AMX. */
int cenote_has_amx(void) {
    const long request_permission = 0x1023, tile_data = 18;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    int tiles = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1), avx512 = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);
    if (!tiles || !avx512 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1)) return 0; /* AVX512-BF16 */
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
