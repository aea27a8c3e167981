package checkpoint

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	header  = Header{Task: "t", Method: "m:a=1", Rank: 1, Workers: 3, Step: 77, Settings: "s", Layout: [][]int{{2, 1}, {0}}}
	entries = map[string][]byte{"a/u": {1, 2, 3}, "": {}, "long": make([]byte, 300)}
)

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, Write(path, Header{}, nil))
	require.NoError(t, Write(path, header, entries), "a file of that name is replaced")
	h, e, err := Read(path)
	require.NoError(t, err)
	require.Equal(t, header, h)
	require.Equal(t, entries, e)
	files, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, files, 1, "nothing may be left behind")
}

func TestMatch(t *testing.T) {
	require.NoError(t, header.Match(header))
	for want, change := range map[string]func(*Header){
		"task": func(h *Header) { h.Task = "x" }, "method": func(h *Header) { h.Method = "x" }, "workers": func(h *Header) { h.Workers = 9 },
		"rank": func(h *Header) { h.Rank = 0 }, "settings": func(h *Header) { h.Settings = "x" },
	} {
		h := header
		change(&h)
		require.ErrorContains(t, header.Match(h), want)
	}
	later := header
	later.Step, later.Layout = 99, nil
	require.NoError(t, header.Match(later))
}

func written(t testing.TB) []byte {
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, Write(path, header, entries))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func TestDamage(t *testing.T) {
	good := written(t)
	for cut := range good {
		_, _, err := parse(good[:cut])
		require.Error(t, err, "%d bytes", cut)
	}
	for bit := range 8 * len(good) {
		bad := slices.Clone(good)
		bad[bit/8] ^= 1 << (bit % 8)
		_, _, err := parse(bad)
		require.Error(t, err, "bit %d", bit)
	}
	other := slices.Clone(good)
	other[8] = 9
	_, _, err := parse(other)
	require.ErrorContains(t, err, "version is 9")
	_, _, err = Read(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// FuzzParse repairs the checksum, so that what it guards is reached.
func FuzzParse(f *testing.F) {
	f.Add(written(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 4 {
			b = binary.LittleEndian.AppendUint32(b[:len(b)-4:len(b)-4], crc32.Checksum(b[:len(b)-4], table))
		}
		_, entries, err := parse(b)
		if err != nil {
			return
		}
		size := 0
		for name, x := range entries {
			size += len(name) + len(x)
		}
		require.LessOrEqual(t, size, len(b))
	})
}
