package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gradpress/gradpress/compress/all"
)

func methodsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "methods",
		Short: "List every method with its settings, defaults and meaning",
		Long:  "List every method. A method is written as its name, or with settings: dgc:ratio=0.001,momentum=0.9",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			list := all.Methods().Describe()
			if asJSON {
				for _, m := range list {
					b, err := json.Marshal(m)
					if err != nil {
						return err
					}
					fmt.Fprintf(w, "%s\n", b)
				}
				return nil
			}
			tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			for _, m := range list {
				fmt.Fprintf(tw, "%s\t%s\n", m.Name, m.Doc)
				for _, s := range m.Settings {
					fmt.Fprintf(tw, "  %s=%s\t%s\n", s.Key, s.Default, s.Doc)
				}
			}
			return tw.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a method")
	return cmd
}
