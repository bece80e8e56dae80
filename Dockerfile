# hybridcalc in a container, without torch:  docker build -t hybridcalc . && docker run --rm hybridcalc plan ...
# 22 MB on a base of some 50: 18 of libraries, each a wheel for musl that nothing has to compile, 4 of the program.
# Files and logs come by a mount or on stdin:  docker run --rm -i hybridcalc log - < boot.txt
FROM python:3.13-alpine AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY hybridcalc hybridcalc
COPY presets presets
RUN python -m venv --without-pip /venv \
    && pip --no-cache-dir --python /venv install --no-compile -c constraints.txt '.[live]'

FROM python:3.13-alpine
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH
USER 65534:65534
WORKDIR /work
ENTRYPOINT ["hybridcalc"]
CMD ["--help"]
