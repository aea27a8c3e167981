package dataset

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// remoteOf describes data as if it were published at url.
func remoteOf(name, url string, data []byte) remote {
	sum := sha256.Sum256(data)
	return remote{name: name, url: url, size: int64(len(data)), sha256: hex.EncodeToString(sum[:])}
}

func serve(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func TestFetch(t *testing.T) {
	want := bytes.Repeat([]byte("some text "), 10_000)
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(want) })
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	var done []int64
	if err := remoteOf("x.txt", url, want).fetch(t.Context(), dir, func(n, total int64) {
		if total != int64(len(want)) {
			t.Errorf("progress of %d, want %d", total, len(want))
		}
		done = append(done, n)
	}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "x.txt"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("fetched %d bytes, want %d: %v", len(got), len(want), err)
	}
	if !slices.IsSorted(done) || len(done) == 0 || done[len(done)-1] != int64(len(want)) {
		t.Errorf("progress went %v", done)
	}
}

func TestFetchFailures(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789"), 20_000)
	flipped := slices.Clone(want)
	flipped[777] ^= 1
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		parts []string
	}{
		"wrong checksum": {func(w http.ResponseWriter, _ *http.Request) { w.Write(flipped) }, []string{"SHA-256", "expected"}},
		"cut by the server": {func(w http.ResponseWriter, _ *http.Request) { w.Write(want[:1000]) },
			[]string{"1000 bytes, expected 200000"}},
		"cut on the way": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(want)))
			w.Write(want[:1000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, []string{"of 200000 bytes", "EOF"}},
		"too long": {func(w http.ResponseWriter, _ *http.Request) { w.Write(append(slices.Clone(want), '!')) },
			[]string{"longer than the 200000 bytes"}},
		"not found": {http.NotFound, []string{"404"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, url := t.TempDir(), serve(t, c.serve)
			err := remoteOf("x", url, want).fetch(t.Context(), dir, nil)
			wantError(t, err, append(c.parts, url)...)
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("%s is left behind", left[0].Name())
			}
		})
	}
}

func TestFetchCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Write(make([]byte, 1000))
		w.(http.Flusher).Flush()
		select { // the rest never comes
		case <-r.Context().Done():
		case <-time.After(5 * time.Second):
		}
	})
	dir := t.TempDir()
	err := remote{name: "x", url: url, size: 1 << 20}.fetch(ctx, dir, func(done, _ int64) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%s is left behind", left[0].Name())
	}
}

func zstdOf(t *testing.T, data []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(data, nil)
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestText(t *testing.T) {
	text := []byte(strings.Repeat("to be, or not to be\n", 50))
	var asked atomic.Int32
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { asked.Add(1); w.Write(text) })
	src := remoteOf("play.txt", url, text)
	plain, compressed, cache := t.TempDir(), t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(plain, "play.txt"), text)
	writeFile(t, filepath.Join(compressed, "play.txt.zst"), zstdOf(t, text))

	for _, c := range []struct {
		dir   string
		fetch bool
	}{{plain, false}, {compressed, false}, {cache, true}, {cache, true}} {
		d, err := loadText(t.Context(), Options{}, "play", src, c.dir, c.fetch)
		if err != nil {
			t.Fatal(err)
		}
		const symbols = "\n ,benort"
		if d.Vocab != len(symbols) || len(d.Train) != 900 || len(d.Valid) != 100 || !math.IsNaN(d.Floor) {
			t.Fatalf("%d symbols, %d and %d tokens, floor %v", d.Vocab, len(d.Train), len(d.Valid), d.Floor)
		}
		var back []byte
		for _, token := range slices.Concat(d.Train, d.Valid) {
			back = append(back, symbols[token])
		}
		if !bytes.Equal(back, text) {
			t.Errorf("the tokens read %q", back)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("fetched %d times, want once", n)
	}

	d, err := loadText(t.Context(), Options{TrainLimit: 17}, "play", src, plain, false)
	if err != nil || len(d.Train) != 17 || len(d.Valid) != 100 {
		t.Errorf("a limit of 17 gives %d and %d tokens: %v", len(d.Train), len(d.Valid), err)
	}
	_, err = loadText(t.Context(), Options{TrainLimit: -2}, "play", src, plain, false)
	wantError(t, err, "TrainLimit", "-2")

	for name, c := range map[string]struct {
		file  string
		data  []byte
		parts []string
	}{
		"other text":  {"play.txt", bytes.ToUpper(text), []string{"SHA-256"}},
		"truncated":   {"play.txt", text[:500], []string{"500 bytes, expected 1000"}},
		"longer":      {"play.txt.zst", zstdOf(t, append(slices.Clone(text), '.')), []string{"longer than the 1000 bytes"}},
		"cut archive": {"play.txt.zst", zstdOf(t, text)[:20], []string{"EOF"}},
		"not zstd":    {"play.txt.zst", text, []string{"magic"}},
	} {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, c.file), c.data)
		_, err := loadText(t.Context(), Options{}, "play", src, dir, false)
		t.Run(name, func(t *testing.T) { wantError(t, err, append(c.parts, filepath.Join(dir, c.file))...) })
	}
}
