package hooks_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the documents show is what is compiled and run, and short enough to be read.
func TestDocumentsShowWhatRuns(t *testing.T) {
	for doc, file := range map[string]string{"write-a-compressor.md": "write_compressor_test.go", "write-a-hook.md": "write_hook_test.go"} {
		text, err := os.ReadFile("../docs/" + doc)
		require.NoError(t, err)
		code, err := os.ReadFile(file)
		require.NoError(t, err)
		_, after, found := strings.Cut(string(text), "```go\n")
		require.True(t, found, doc)
		shown, _, _ := strings.Cut(after, "```")
		require.Equal(t, string(code), shown, "%s shows another text than %s", doc, file)
		require.Less(t, strings.Count(shown, "\n"), 60, doc)
	}
}
