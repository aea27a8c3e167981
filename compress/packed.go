package compress

import (
	"encoding/binary"
	"fmt"
)

// AppendPacked appends the encoding of p with the given bytes to dst: the length, unless p is full; then, where p asks for entropy coding,
// the length of the coded bytes and those, or a zero and the plain ones; else the plain ones.
func AppendPacked(dst []byte, p *Packed, b []byte) []byte {
	if !p.Full {
		dst = binary.AppendUvarint(dst, uint64(len(b)))
	}
	if p.Entropy && len(b) > 0 {
		if c := compact(b); c != nil {
			dst = binary.AppendUvarint(dst, uint64(len(c)))
			return append(dst, c...)
		}
		dst = append(dst, 0)
	}
	return append(dst, b...)
}

// DecodePacked reads what AppendPacked wrote for a payload like p into b, whose length is the most that may come. It returns how many bytes
// came and what follows them in src.
func DecodePacked(src []byte, p *Packed, b []byte) (n int, rest []byte, err error) {
	n = len(b)
	if !p.Full {
		v, after, err := uvarint(src, uint64(n))
		if err != nil {
			return 0, nil, fmt.Errorf("length: %w", err)
		}
		n, src = int(v), after
	}
	if p.Entropy && n > 0 {
		m, after, err := uvarint(src, uint64(n-1))
		if err != nil {
			return 0, nil, fmt.Errorf("coded length: %w", err)
		}
		if src = after; m > 0 {
			if uint64(len(src)) < m {
				return 0, nil, errTruncated
			}
			return n, src[m:], expand(b[:n], src[:m])
		}
	}
	if len(src) < n {
		return 0, nil, errTruncated
	}
	copy(b, src[:n])
	return n, src[n:], nil
}
