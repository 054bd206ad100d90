// Package bed tells Go tests where the test bed keeps its programs.
package bed

import (
	"os"
	"path/filepath"
)

// Assets returns the directory that holds etcd, kube-apiserver and kubectl, built by "bed build": what
// KUBEBUILDER_ASSETS says, else the bin directory of the bed. It can be given to envtest as it is.
func Assets() (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir, nil
	}
	if dir := os.Getenv("ATEWF_BED_DIR"); dir != "" {
		return filepath.Join(dir, "bin"), nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "atewf", "bed", "bin"), nil
}
