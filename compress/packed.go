package compress

import (
	"encoding/binary"
	"fmt"
)

// AppendPacked appends the encoding of p with the given bytes to dst: the length, unless p is full; then the bytes, entropy-coded where p
// asks for that.
func AppendPacked(dst []byte, p *Packed, b []byte) []byte {
	if !p.Full {
		dst = binary.AppendUvarint(dst, uint64(len(b)))
	}
	if p.Entropy {
		return appendEntropy(dst, b)
	}
	return append(dst, b...)
}

// DecodePacked reads what AppendPacked wrote for a payload like p into b, whose length is the most that may come, and exactly what must come
// when p is full. It returns how many bytes came and what follows them in src.
func DecodePacked(src []byte, p *Packed, b []byte) (n int, rest []byte, err error) {
	n = len(b)
	if !p.Full {
		v, after, err := uvarint(src, uint64(n))
		if err != nil {
			return 0, nil, fmt.Errorf("length: %w", err)
		}
		n, src = int(v), after
	}
	if p.Entropy {
		if rest, err = decodeEntropy(src, b[:n]); err != nil {
			return 0, nil, err
		}
		return n, rest, nil
	}
	if len(src) < n {
		return 0, nil, errTruncated
	}
	copy(b, src[:n])
	return n, src[n:], nil
}
