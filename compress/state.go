package compress

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/gradpress/gradpress/kernels"
)

// Snapshot is a compressor's state off the device, by name.
type Snapshot map[string][]byte

// Save copies everything that c remembers into a Snapshot.
func Save(ctx context.Context, s kernels.Stream, c Compressor) (Snapshot, error) {
	snap := Snapshot{}
	for _, b := range c.State() {
		if _, dup := snap[b.Name]; dup {
			return nil, fmt.Errorf("compress: state %q appears twice", b.Name)
		}
		if b.Count != nil {
			snap[b.Name] = binary.LittleEndian.AppendUint64(nil, *b.Count)
			continue
		}
		x := make([]byte, b.Buf.Len())
		if err := kernels.Read(ctx, s, x, b.Buf); err != nil {
			return nil, err
		}
		snap[b.Name] = x
	}
	return snap, nil
}

// Restore sets everything that c remembers from snap, which may hold more than c needs. When something is missing or of another
// size it says which, and c is as before.
func Restore(ctx context.Context, s kernels.Stream, c Compressor, snap Snapshot) error {
	state := c.State()
	for _, b := range state {
		want := 8
		if b.Count == nil {
			want = b.Buf.Len()
		}
		x, ok := snap[b.Name]
		if !ok {
			return fmt.Errorf("compress: the saved state has no %q: was it saved by another method?", b.Name)
		}
		if len(x) != want {
			return fmt.Errorf("compress: saved state %q has %d bytes, want %d: was the tensor of another shape?", b.Name, len(x), want)
		}
	}
	for _, b := range state {
		if b.Count != nil {
			*b.Count = binary.LittleEndian.Uint64(snap[b.Name])
			continue
		}
		kernels.Write(s, b.Buf, snap[b.Name])
	}
	return s.Sync(ctx)
}
