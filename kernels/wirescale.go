package kernels

import (
	"encoding/binary"
	"math"
)

// maxScale is the largest scale in a message: 127 times as much, or the mean of so many over ranks, is still finite.
const maxScale = 0x1p119

// sane is v, or 0 where no message may carry it as a scale: NaN, infinite or beyond maxScale.
func sane(v float32) float32 {
	if !(v >= -maxScale && v <= maxScale) {
		return 0
	}
	return v
}

// getScale reads a scale, float32 in little-endian order, that a peer may have made up: it is sane, and so whatever the bytes a payload
// decodes to a finite vector. All ranks decode the same bytes, so that they agree on it.
func getScale(b []byte) float32 { return sane(math.Float32frombits(binary.LittleEndian.Uint32(b))) }

func putScale(b []byte, v float32) { binary.LittleEndian.PutUint32(b, math.Float32bits(v)) }
