package link

import (
	"encoding/binary"
	"math/bits"
)

// A frame is a header and a body. The header is the varint of the body's length times two, plus one for control frames, which
// meshes send each other and do not count.

// PutHeader writes the header of a body of n bytes to b and returns its length. b has room for binary.MaxVarintLen64 bytes.
func PutHeader(b []byte, n int, control bool) int {
	h := uint64(n) << 1
	if control {
		h |= 1
	}
	return binary.PutUvarint(b, h)
}

// HeaderLen is the length of the header of a message of n bytes.
func HeaderLen(n int) int { return (bits.Len64(uint64(n)<<1|1) + 6) / 7 }
