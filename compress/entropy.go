package compress

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/fse"
)

// coders are kept between calls, since they allocate their tables.
var coders = sync.Pool{New: func() any { return new(fse.Scratch) }}

// compact returns b in fewer bytes, or nil where that cannot be had.
func compact(b []byte) []byte {
	s := coders.Get().(*fse.Scratch)
	defer coders.Put(s)
	c, err := fse.Compress(b, s)
	if err != nil || len(c) >= len(b) {
		return nil
	}
	return append([]byte(nil), c...)
}

// expand is the reverse of compact: it fills b from c, or says what is wrong.
func expand(b, c []byte) error {
	s := coders.Get().(*fse.Scratch)
	defer coders.Put(s)
	s.DecompressLimit = len(b)
	out, err := fse.Decompress(c, s)
	if err != nil {
		return fmt.Errorf("entropy coding: %w", err)
	}
	if copy(b, out) != len(b) || len(out) != len(b) {
		return errors.New("entropy coding: another length than announced")
	}
	return nil
}
