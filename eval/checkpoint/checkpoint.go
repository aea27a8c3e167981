// Package checkpoint is the file that holds everything one rank remembers: weights, optimizer, what its compressors owe, the layout of
// its buckets. A run that is resumed from it with the same ranks and layout is bit-equal to one that never stopped.
package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
)

// Version is the version of the file format: an 8-byte magic, the version and the length of the header as 32-bit numbers, the header as
// JSON, the entries in order of their names (length of the name, name, length, bytes; lengths are varints), a CRC-32 (Castagnoli) of all
// before it. Numbers are little-endian.
const Version = 1

const magic = "gradckpt"

// Header says what a checkpoint is of.
type Header struct {
	Task    string `json:"task"`
	Method  string `json:"method"`
	Rank    int    `json:"rank"`
	Workers int    `json:"workers"`
	Step    int    `json:"step"` // steps done
	// Settings is whatever else must agree for the run to go on as it would have, as text.
	Settings string `json:"settings"`
	// Layout is the parameters of each bucket.
	Layout [][]int `json:"layout"`
}

// Match reports the first thing in which a checkpoint is of another run than want.
func (h Header) Match(want Header) error {
	for _, c := range []struct {
		what        string
		have, asked any
	}{
		{"task", h.Task, want.Task}, {"method", h.Method, want.Method}, {"number of workers", h.Workers, want.Workers}, {"rank", h.Rank, want.Rank},
		{"settings", h.Settings, want.Settings},
	} {
		if c.have != c.asked {
			return fmt.Errorf("checkpoint: %s is %v in the file and %v now", c.what, c.have, c.asked)
		}
	}
	return nil
}

var table = crc32.MakeTable(crc32.Castagnoli)

// Write writes a checkpoint. A file of that name is replaced at once, so that a crash leaves the old one or the new one.
func Write(path string, h Header, entries map[string][]byte) error {
	head, err := json.Marshal(h)
	if err != nil {
		return err
	}
	b := append([]byte(magic), 0, 0, 0, 0, 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(b[8:], Version)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(head)))
	b = append(b, head...)
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
		b = append(binary.AppendUvarint(b, uint64(len(entries[name]))), entries[name]...)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, table))
	tmp, err := os.CreateTemp(filepath.Dir(path), ".checkpoint-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}

// Read reads a checkpoint. Whatever the bytes, it allocates no more than the file is long.
func Read(path string) (Header, map[string][]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Header{}, nil, err
	}
	h, entries, err := parse(b)
	if err != nil {
		return Header{}, nil, fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	return h, entries, nil
}

var errShort = errors.New("it ends too early")

func parse(b []byte) (h Header, entries map[string][]byte, err error) {
	if len(b) < 20 || string(b[:8]) != magic {
		return h, nil, errors.New("it is not a gradpress checkpoint")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != Version {
		return h, nil, fmt.Errorf("its version is %d, this program reads %d", v, Version)
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, table) != sum {
		return h, nil, errors.New("its checksum is wrong: it is damaged or cut short")
	}
	n := int64(binary.LittleEndian.Uint32(b[12:]))
	rest := body[16:]
	if n > int64(len(rest)) {
		return h, nil, errShort
	}
	if err := json.Unmarshal(rest[:n], &h); err != nil {
		return h, nil, fmt.Errorf("its header: %w", err)
	}
	rest = rest[n:]
	entries = map[string][]byte{}
	for len(rest) > 0 {
		name, after, err := field(rest)
		if err != nil {
			return h, nil, err
		}
		x, after, err := field(after)
		if err != nil {
			return h, nil, err
		}
		if _, dup := entries[string(name)]; dup {
			return h, nil, fmt.Errorf("entry %q appears twice", name)
		}
		entries[string(name)], rest = x, after
	}
	return h, entries, nil
}

func field(b []byte) (x, rest []byte, err error) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return nil, nil, errShort
	}
	return b[used:][:n:n], b[used:][n:], nil
}
