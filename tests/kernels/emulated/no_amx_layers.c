/* Instead of native_layers.c: the drivers keep no rows in the layout of tiles. */
#include "encoder.h"

const TileLayers cenote_amx_layers = {0};
