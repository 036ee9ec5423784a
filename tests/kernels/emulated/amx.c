/* The tile registers of emulated AMX, which a CPU with this file has. */
#include <stdint.h>

_Thread_local uint8_t emulated_tiles[8][16][64];
_Thread_local int emulated_has_tiles;

int cenote_has_amx(void) { return 1; }
