package compress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/klauspost/compress/fse"
	"github.com/klauspost/compress/huff0"
)

// Entropy coding cuts bytes into blocks of blockSize, so that scratch is small and fixed whatever the tensor. A block is one byte that
// says how it is coded, and then
//
//	plain  the bytes
//	same   the one byte that they all are
//	gaps   of bytes that hold ternaries, two bits each, the lowest first, 0, 1 or 2: how many are not 0, as a varint; their
//	       indices, as a Sparse has them; a bit for each, set for a 2
//	huff   of other ternaries: a length, as a varint, and so many bytes of Huffman's code, as zstd has it for literals (RFC 8878, 4.2), in
//	       four streams
//	fse    of other bytes: a length, as a varint, and so many bytes of FSE, as zstd has it for Huffman's weights (RFC 8878, 4.2.1.2), of up
//	       to fseBits
//
// Measured on ternaries that are not 0 with probability p, n = 1e6, as a multiple of their empirical entropy; huff0, fse and zstd with
// four ternaries a byte, and fse also with five or one (BenchmarkEntropyCoders prints this again):
//
//	p      bits each  ours   gaps   huff0  fse    fse,5  fse,1  zstd
//	0.001  0.0127     1.015  1.009  19.95  1.064  1.067  1.096  1.909
//	0.01   0.0925     1.004  1.003  3.063  1.022  1.027  1.014  1.932
//	0.05   0.3375     1.009  1.009  1.238  1.010  1.015  1.004  1.539
//	0.1    0.5698     1.012  1.012  1.047  1.006  1.011  1.003  1.322
//	0.12   0.6505     1.016  1.016  1.028  1.006  1.011  1.002  1.276
//	0.2    0.9221     1.023  1.018  1.023  1.004  1.009  1.002  1.140
//	0.3    1.181      1.010  1.006  1.010  1.004  1.007  1.001  1.042
//	0.5    1.500      1.001  1.000  1.001  1.003  1.007  1.001  1.334
//
// In MB/s of packed bytes, coding and decoding, gaps run at 2300 and 13000 (p = 0.001) down to 140 and 110 (p = 0.12), huff0 at 550 and
// 1200 (p = 0.2), fse at 220 and 320. So few go as gaps and many to huff0: within 3 % everywhere, while fse alone misses 5 % where
// few are not 0 and would save one per cent elsewhere at a third of the speed. Sums of ternaries, a byte each, are most often 0, for which Huffman's
// code has a whole bit: 12 % too much for two ranks and p = 0.2, and times too much where few are not 0. FSE is within 1 % and some 50 bytes a block
// (TestSumsAreNearEntropy). The sign bits of 1-bit SGD are incompressible.
const blockSize = 1 << 16

// fseBits is the accuracy of FSE's tables: they have 1<<fseBits states, the most that its encoder makes.
const fseBits = 12

const (
	plain = iota
	same
	gaps
	huff
	ans // asymmetric numeral systems, of which FSE is one
)

// mostGaps is how many ternaries of a block of b bytes may be other than 0 for gaps to be taken: one in eight.
func mostGaps(b int) int { return 4 * b / 8 }

// coder holds what coding a block needs. Both directions of huff0 would overwrite each other's tables in one Scratch.
type coder struct {
	enc, dec huff0.Scratch
	idx      []uint32
	fse      fse.Scratch
	out      []byte // of fse, a block and some more
}

// coders keeps some between calls. Unlike a sync.Pool it is not emptied by a garbage collection.
var coders = make(chan *coder, 8)

func getCoder() *coder {
	select {
	case c := <-coders:
		return c
	default:
		return &coder{enc: huff0.Scratch{Out: make([]byte, 0, blockSize), Reuse: huff0.ReusePolicyNone}, idx: make([]uint32, mostGaps(blockSize)),
			fse: fse.Scratch{TableLog: fseBits}, out: make([]byte, 0, blockSize+1024)}
	}
}

func putCoder(c *coder) {
	select {
	case coders <- c:
	default:
	}
}

// appendEntropy appends the coding of b to dst.
func appendEntropy(dst, b []byte) []byte {
	c := getCoder()
	defer putCoder(c)
	for len(b) > 0 {
		n := min(len(b), blockSize)
		dst = c.append(dst, b[:n])
		b = b[n:]
	}
	return dst
}

// decodeEntropy fills b from src and returns what follows it.
func decodeEntropy(src, b []byte) (rest []byte, err error) {
	c := getCoder()
	defer putCoder(c)
	for len(b) > 0 {
		n := min(len(b), blockSize)
		if src, err = c.decode(src, b[:n]); err != nil {
			return nil, fmt.Errorf("entropy coding: %w", err)
		}
		b = b[n:]
	}
	return src, nil
}

func (c *coder) append(dst, b []byte) []byte {
	var coded []byte
	var err error
	kind := byte(huff)
	switch k, ok := ternaries(b); {
	case ok && k <= mostGaps(len(b)):
		return c.appendGaps(append(dst, gaps), b, k)
	case ok:
		coded, _, err = huff0.Compress4X(b, &c.enc)
	default:
		kind = ans
		c.fse.Out = c.out[:0]
		coded, err = fse.Compress(b, &c.fse)
	}
	switch {
	case errors.Is(err, huff0.ErrUseRLE) || errors.Is(err, fse.ErrUseRLE):
		return append(dst, same, b[0])
	case err != nil || len(coded)+3 >= len(b):
		return append(append(dst, plain), b...)
	}
	dst = binary.AppendUvarint(append(dst, kind), uint64(len(coded)))
	return append(dst, coded...)
}

func (c *coder) decode(src, b []byte) (rest []byte, err error) {
	if len(src) == 0 {
		return nil, errTruncated
	}
	kind, src := src[0], src[1:]
	switch kind {
	case plain:
		if len(src) < len(b) {
			return nil, errTruncated
		}
		return src[copy(b, src):], nil
	case same:
		if len(src) == 0 {
			return nil, errTruncated
		}
		for i := range b {
			b[i] = src[0]
		}
		return src[1:], nil
	case gaps:
		return c.decodeGaps(src, b)
	case huff, ans:
		m, src, err := uvarint(src, uint64(len(b)))
		if err != nil {
			return nil, fmt.Errorf("length: %w", err)
		}
		if uint64(len(src)) < m {
			return nil, errTruncated
		}
		decode := c.decodeHuff
		if kind == ans {
			decode = c.decodeFSE
		}
		n, err := decode(src[:m], b)
		if err == nil && n != len(b) {
			err = errors.New("another length than announced")
		}
		return src[m:], err
	}
	return nil, fmt.Errorf("no coding %d", kind)
}

func (c *coder) decodeHuff(src, b []byte) (n int, err error) {
	_, streams, err := huff0.ReadTable(src, &c.dec)
	if err != nil {
		return 0, err
	}
	out, err := c.dec.Decoder().Decompress4X(b[:0:len(b)], streams)
	return len(out), err
}

func (c *coder) decodeFSE(src, b []byte) (n int, err error) {
	if len(src) > 0 && src[0]&15 > fseBits-5 { // which would have a larger table made
		return 0, fmt.Errorf("FSE of %d bits, want at most %d", src[0]&15+5, fseBits)
	}
	c.fse.Out, c.fse.DecompressLimit = c.out[:0], len(b)+1
	out, err := fse.Decompress(src, &c.fse)
	copy(b, out)
	return len(out), err
}

const low = 0x5555555555555555 // the low bit of each ternary

// ternaries tells whether b holds ternaries, and how many of them are not 0.
func ternaries(b []byte) (k int, ok bool) {
	var three uint64
	for i := 0; i < len(b); i += 8 {
		w := word(b, i)
		three |= w & (w >> 1)
		k += bits.OnesCount64(w)
	}
	return k, three&low == 0
}

// word is eight bytes of b from i on, with zeros after its end.
func word(b []byte, i int) uint64 {
	if i+8 <= len(b) {
		return binary.LittleEndian.Uint64(b[i:])
	}
	var w [8]byte
	copy(w[:], b[i:])
	return binary.LittleEndian.Uint64(w[:])
}

func (c *coder) appendGaps(dst, b []byte, k int) []byte {
	dst = binary.AppendUvarint(dst, uint64(k))
	idx, j := c.idx[:k], 0
	for i := 0; i < len(b); i += 8 {
		w := word(b, i)
		for w = (w | w>>1) & low; w != 0; w &= w - 1 {
			idx[j] = uint32(4*i + bits.TrailingZeros64(w)/2)
			j++
		}
	}
	w := bitWriter{b: appendIndices(dst, 4*len(b), idx)}
	for _, i := range idx {
		w.put(uint64(b[i/4]>>(i%4*2+1)&1), 1)
	}
	return w.flush()
}

func (c *coder) decodeGaps(src, b []byte) (rest []byte, err error) {
	k, src, err := uvarint(src, uint64(mostGaps(len(b))))
	if err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	idx := c.idx[:k]
	if src, err = decodeIndices(src, 4*len(b), idx); err != nil {
		return nil, fmt.Errorf("indices: %w", err)
	}
	clear(b)
	r := bitReader{b: src}
	for _, i := range idx {
		two, err := r.get(1)
		if err != nil {
			return nil, err
		}
		b[i/4] |= byte(1+two) << (i % 4 * 2)
	}
	return r.rest()
}
