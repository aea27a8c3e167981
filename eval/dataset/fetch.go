package dataset

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"
)

// remote is a file that may be fetched: its name on disk, where it is published, and what it must be.
type remote struct {
	name   string
	url    string
	size   int64  // bytes
	sha256 string // of the file, in hexadecimal
}

// client gives up on a server that does not answer; a slow transfer is the caller's to cancel.
var client = &http.Client{Transport: &http.Transport{
	Proxy:                 http.ProxyFromEnvironment,
	DialContext:           (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
	TLSHandshakeTimeout:   30 * time.Second,
	ResponseHeaderTimeout: time.Minute,
	ForceAttemptHTTP2:     true,
}}

// fetch downloads r into dir. The file appears under its name only when it is whole and its
// checksum is right, so that several processes may fetch it at once.
func (r remote) fetch(ctx context.Context, dir string, progress func(done, total int64)) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("dataset: fetch %s: %w", r.url, err)
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the server answered %s", resp.Status)
	}

	tmp, err := os.CreateTemp(dir, r.name+".*.part")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	hash := sha256.New()
	dst := &meter{w: io.MultiWriter(tmp, hash), tally: tally{total: r.size, report: progress}}
	n, err := io.Copy(dst, io.LimitReader(resp.Body, r.size+1))
	if err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", n, r.size, err)
	}
	if err := r.compare(n, hash.Sum(nil)); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), filepath.Join(dir, r.name))
}

// compare checks what was read against what was published. n is capped at size+1.
func (r remote) compare(n int64, sum []byte) error {
	switch got := hex.EncodeToString(sum); {
	case n > r.size:
		return fmt.Errorf("longer than the %d bytes expected", r.size)
	case n < r.size:
		return fmt.Errorf("%d bytes, expected %d", n, r.size)
	case got != r.sha256:
		return fmt.Errorf("SHA-256 is %s, expected %s", got, r.sha256)
	}
	return nil
}

// check reads src, a file that was there, to its end and compares it with r.
func (r remote) check(src io.Reader) error {
	hash := sha256.New()
	n, err := io.Copy(hash, io.LimitReader(src, r.size+1))
	if err != nil {
		return err
	}
	if err := r.compare(n, hash.Sum(nil)); err != nil {
		return fmt.Errorf("%w; delete it and get it again", err)
	}
	return nil
}

// read returns the bytes of the file at path, which compressed says to be zstd, once they match r.
func (r remote) read(path string, compressed bool) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("dataset: %w", err)
	}
	defer f.Close()
	var src io.Reader = f
	if compressed {
		z, err := newZstd(f)
		if err != nil {
			return nil, fmt.Errorf("dataset: %s: %w", path, err)
		}
		defer z.Close()
		src = z
	}
	var text bytes.Buffer
	if err := r.check(io.TeeReader(src, &text)); err != nil {
		return nil, fmt.Errorf("dataset: %s: %w", path, err)
	}
	return text.Bytes(), nil
}

// newZstd bounds what a hostile file can make the decoder allocate.
func newZstd(r io.Reader) (*zstd.Decoder, error) {
	return zstd.NewReader(r, zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecoderConcurrency(1))
}

// meter reports the bytes that pass through it.
type meter struct {
	w io.Writer
	tally
}

func (m *meter) Write(p []byte) (int, error) {
	n, err := m.w.Write(p)
	m.add(int64(n))
	return n, err
}
