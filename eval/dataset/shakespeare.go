package dataset

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
)

// tinyShakespeare is the text of Karpathy's char-rnn. Its checksum is that of many published
// copies, and the one of the Git object 7dcb3a2d4cc3b48b6283dd46870bfeb78f88aac9.
var tinyShakespeare = remote{
	name:   "tinyshakespeare.txt",
	url:    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
	size:   1115394,
	sha256: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
}

// Shakespeare is the tiny shakespeare text by character: a token is the rank of its byte among
// the 65 that occur. The first nine tenths are the train split. It is read from tinyshakespeare.txt
// or tinyshakespeare.txt.zst, or fetched; see Options.Dir.
func Shakespeare(ctx context.Context, o Options) (*Text, error) {
	dir, mayFetch, err := o.place()
	if err != nil {
		return nil, err
	}
	return loadText(ctx, o, "shakespeare", tinyShakespeare, dir, mayFetch)
}

func loadText(ctx context.Context, o Options, name string, src remote, dir string, mayFetch bool) (*Text, error) {
	text, err := readText(ctx, o, src, dir, mayFetch)
	if err != nil {
		return nil, err
	}
	var seen [256]bool
	for _, b := range text {
		seen[b] = true
	}
	var token [256]int32
	vocab := 0
	for b := range seen {
		if seen[b] {
			token[b] = int32(vocab)
			vocab++
		}
	}
	tokens := make([]int32, len(text))
	for i, b := range text {
		tokens[i] = token[b]
	}
	cut := len(tokens) * 9 / 10
	n, err := o.trainSize(cut)
	if err != nil {
		return nil, err
	}
	return &Text{Name: name, Vocab: vocab, Train: tokens[:n:n], Valid: tokens[cut:], Floor: math.NaN()}, nil
}

// readText finds the file, plain or compressed, and returns its checked bytes.
func readText(ctx context.Context, o Options, src remote, dir string, mayFetch bool) ([]byte, error) {
	plain := filepath.Join(dir, src.name)
	for _, path := range []string{plain, plain + ".zst"} {
		if ok, err := isFile(path); err != nil {
			return nil, err
		} else if ok {
			return src.read(path, path != plain)
		}
	}
	if !mayFetch {
		return nil, fmt.Errorf("dataset: %s holds neither %s nor %[2]s.zst; get the first from %s, or leave the directory unset to have it fetched",
			dir, src.name, src.url)
	}
	if err := src.fetch(ctx, dir, o.Progress); err != nil {
		return nil, err
	}
	return src.read(plain, false)
}
